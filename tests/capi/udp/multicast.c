/* One end of provider udp's datagrams to a multicast group: `send ADDRESS` until it is killed, or `receive ADDRESS`
 * until enough have arrived. ADDRESS is the endpoint's own. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include "check.h"

#define GROUP "239.77.1.2"
#define PORT "47711"
#define SIZE 512
#define WANTED 20

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_eq *eq;
static struct fid_ep *ep;
static struct fid_mc *mc;

static void open_end(const char *address, const char *service)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_MSG};
	struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_NONE};
	struct fi_av_attr av_attr = {.type = FI_AV_MAP};
	hints->caps = FI_MSG | FI_MULTICAST;
	hints->ep_attr->type = FI_EP_DGRAM;
	hints->fabric_attr->prov_name = strdup("udp");
	hints->addr_format = FI_SOCKADDR_IN;
	OK(fi_getinfo(FI_VERSION(1, 9), address, service, FI_SOURCE | FI_NUMERICHOST, hints, &info));
	fi_freeinfo(hints);
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_av_open(domain, &av_attr, &av, NULL));
	OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
	OK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_ep_bind(ep, &eq->fid, 0));
	OK(fi_enable(ep));
}

static void join(uint64_t flags)
{
	struct sockaddr_in group = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(PORT))};
	struct fi_eq_entry entry;
	uint32_t event;
	ssize_t answer;
	CHECK(inet_pton(AF_INET, GROUP, &group.sin_addr) == 1);
	OK(fi_join(ep, &group, flags, &mc, NULL));
	for (double end = now() + 10; (answer = fi_eq_read(eq, &event, &entry, sizeof entry, 0)) == -FI_EAGAIN;)
		CHECK(now() < end);
	ANSWERS(answer, sizeof entry);
	CHECK(event == FI_JOIN_COMPLETE);
}

/* The next completion, within 20 seconds. */
static struct fi_cq_msg_entry next(void)
{
	struct fi_cq_msg_entry entry;
	ssize_t answer;
	for (double end = now() + 20; (answer = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN;)
		CHECK(now() < end);
	ANSWERS(answer, 1);
	return entry;
}

/* Each datagram is a number, and bytes derived from it. */
static void fill(unsigned char *buffer, unsigned char number)
{
	for (int at = 0; at < SIZE; at++)
		buffer[at] = (unsigned char)(number + at * 7);
}

static void send_all(void)
{
	unsigned char buffer[SIZE];
	struct iovec piece = {.iov_base = buffer, .iov_len = SIZE};
	struct fi_msg message = {.msg_iov = &piece, .iov_count = 1, .addr = fi_mc_addr(mc)};
	for (unsigned char number = 0;; number++) {
		fill(buffer, number);
		OK(fi_sendmsg(ep, &message, FI_MULTICAST | FI_COMPLETION));
		CHECK(next().flags & FI_SEND);
		usleep(10000);
	}
}

static void receive_all(void)
{
	unsigned char buffer[2 * SIZE], wanted[SIZE];
	for (int got = 0, last = -1; got < WANTED; got++) {
		OK(fi_recv(ep, buffer, sizeof buffer, NULL, FI_ADDR_UNSPEC, NULL));
		struct fi_cq_msg_entry entry = next();
		CHECK(entry.flags & FI_RECV);
		ANSWERS(entry.len, SIZE);
		fill(wanted, buffer[0]);
		CHECK(memcmp(buffer, wanted, SIZE) == 0);
		/* Each arrives once: the group does not deliver twice. */
		CHECK(buffer[0] != last);
		last = buffer[0];
	}
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	int sends = strcmp(argv[1], "send") == 0;
	open_end(argv[2], sends ? NULL : PORT);
	join(sends ? FI_SEND : FI_RECV);
	if (sends)
		send_all();
	else
		receive_all();
	OK(fi_close(&mc->fid));
	OK(fi_close(&ep->fid));
	OK(fi_close(&eq->fid));
	OK(fi_close(&cq->fid));
	OK(fi_close(&av->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
	return 0;
}
