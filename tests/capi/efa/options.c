/* Endpoint options of provider efa (fi_efa(7)), on the library that it was started with: which of them can be read and
 * set before an endpoint is enabled, and which are refused afterwards. And what its info tells of the emulated device.
 */
#include <stdbool.h>

#include <rdma/fi_ext.h>

#include "side.h"

static struct fid_ep *ep;

static int set(int option, const void *value, size_t len)
{
	return fi_setopt(&ep->fid, FI_OPT_ENDPOINT, option, value, len);
}

static int get(int option, void *value, size_t len)
{
	size_t there = len;
	int answer = fi_getopt(&ep->fid, FI_OPT_ENDPOINT, option, value, &there);
	CHECK(answer || there == len);
	return answer;
}

#if FI_MAJOR_VERSION >= 2
static bool flag(int option)
{
	bool value = false;
	OK(get(option, &value, sizeof value));
	return value;
}

static void check_flags(void)
{
	bool on = true, off = false;
	/* The emulated device reads and writes peers' memory. */
	CHECK(!flag(FI_OPT_EFA_EMULATED_READ) && !flag(FI_OPT_EFA_EMULATED_WRITE));
	CHECK(flag(FI_OPT_EFA_EMULATED_ATOMICS));
	ANSWERS(set(FI_OPT_EFA_EMULATED_READ, &on, sizeof on), -FI_ENOPROTOOPT);
	OK(set(FI_OPT_EFA_USE_DEVICE_RDMA, &off, sizeof off));
	CHECK(flag(FI_OPT_EFA_EMULATED_READ) && flag(FI_OPT_EFA_EMULATED_WRITE));
	OK(set(FI_OPT_EFA_USE_DEVICE_RDMA, &on, sizeof on));
	CHECK(!flag(FI_OPT_EFA_EMULATED_READ) && !flag(FI_OPT_EFA_EMULATED_WRITE));
	ANSWERS(set(FI_OPT_EFA_USE_DEVICE_RDMA, &on, 3), -FI_EINVAL);
	for (int at = 0; at < 2; at++) {
		int option = at ? FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES
				: FI_OPT_EFA_SENDRECV_IN_ORDER_ALIGNED_128_BYTES;
		OK(set(option, &off, sizeof off));
		ANSWERS(set(option, &on, sizeof on), -FI_EOPNOTSUPP);
	}
}
#endif

static void check_nic(const struct fid_nic *nic)
{
	CHECK(nic && nic->device_attr && nic->bus_attr && nic->link_attr);
	CHECK(!strcmp(nic->device_attr->name, "efa_emu0") && !strcmp(nic->device_attr->driver, "efa"));
	CHECK(!strcmp(nic->device_attr->vendor_id, "0x1d0f") && !strcmp(nic->device_attr->device_id, "0xefa2"));
	CHECK(nic->device_attr->firmware && nic->device_attr->device_version);
	const struct fi_pci_attr *pci = &nic->bus_attr->attr.pci;
	CHECK(nic->bus_attr->bus_type == FI_BUS_PCI);
	CHECK(pci->domain_id == 0 && pci->bus_id == 0 && pci->device_id == 0x1f && pci->function_id == 0);
	/* C's library of 1.17 tells what is left of the device's 8,928 bytes for a payload. */
	CHECK(nic->link_attr->mtu > 8192 && nic->link_attr->mtu <= 8928);
	CHECK(nic->link_attr->state == FI_LINK_UP && nic->link_attr->speed > 0);
	CHECK(strstr(nic->link_attr->address, ":"));
}

int main(void)
{
	uint32_t version = FI_MAJOR_VERSION >= 2 ? FI_VERSION(2, 0) : FI_VERSION(1, 17);
	struct side side = side_open(version, FI_MSG | FI_TAGGED | FI_RMA);
	check_nic(side.info->nic);
	ep = side.ep;
	size_t retry = 0, five = 5;
	OK(get(FI_OPT_EFA_RNR_RETRY, &retry, sizeof retry));
	ANSWERS(retry, 3);
	ANSWERS(set(FI_OPT_EFA_RNR_RETRY, &five, 4), -FI_EINVAL);
	OK(set(FI_OPT_EFA_RNR_RETRY, &five, sizeof five));
	OK(get(FI_OPT_EFA_RNR_RETRY, &retry, sizeof retry));
	ANSWERS(retry, 5);
#if FI_MAJOR_VERSION >= 2
	check_flags();
#endif
	ANSWERS(get(-(0xabc << 16), &retry, sizeof retry), -FI_ENOPROTOOPT);
	side_enable(&side);
	ANSWERS(set(FI_OPT_EFA_RNR_RETRY, &five, sizeof five), -FI_EINVAL);
	side_close(&side, NULL, NULL);
	return 0;
}
