/*
 * A toy provider: one endpoint that sends to itself. It stands for a vendor's plug-in beside ours. BAD makes it
 * defective; see the names below.
 */
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>

#define NO_SYMBOL 1
#define NO_TABLE 2
#define NO_CALLS 3
#define TOO_OLD 4
#define NO_NAME 5
#define OUR_NAME 6

#ifndef BAD
#define BAD 0
#endif

static int closed(struct fid *fid)
{
	free(fid);
	return 0;
}

static int bound(struct fid *fid, struct fid *other, uint64_t flags) { return 0; }
static int controlled(struct fid *fid, int command, void *arg) { return 0; }

static struct fi_ops fid_ops = {
	.size = sizeof(struct fi_ops), .close = closed, .bind = bound, .control = controlled};

/* The last message, and the posted receive. There is one endpoint. */
static struct {
	char bytes[64];
	size_t len;
	int full, completions;
	void *into, *context;
} box;

static void match(void)
{
	if (box.full && box.into) {
		memcpy(box.into, box.bytes, box.len);
		box.into = NULL;
		box.full = 0;
		box.completions++;
	}
}

static ssize_t toy_send(struct fid_ep *ep, const void *buf, size_t len, void *desc, fi_addr_t to, void *context)
{
	if (box.full)
		return -FI_EAGAIN;
	if (len > sizeof box.bytes)
		return -FI_EMSGSIZE;
	memcpy(box.bytes, buf, len);
	box.len = len;
	box.full = 1;
	match();
	return 0;
}

static ssize_t toy_recv(struct fid_ep *ep, void *buf, size_t len, void *desc, fi_addr_t from, void *context)
{
	box.into = buf;
	box.context = context;
	match();
	return 0;
}

static struct fi_ops_msg msg_ops = {.size = sizeof(struct fi_ops_msg), .send = toy_send, .recv = toy_recv};

static ssize_t toy_read(struct fid_cq *cq, void *buf, size_t count)
{
	if (!box.completions || !count)
		return -FI_EAGAIN;
	box.completions--;
	((struct fi_cq_entry *)buf)->op_context = box.context;
	return 1;
}

static struct fi_ops_cq cq_ops = {.size = sizeof(struct fi_ops_cq), .read = toy_read};

static int toy_cq(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context)
{
	*cq = calloc(1, sizeof **cq);
	(*cq)->fid = (struct fid){FI_CLASS_CQ, context, &fid_ops};
	(*cq)->ops = &cq_ops;
	return 0;
}

static int toy_endpoint(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context)
{
	*ep = calloc(1, sizeof **ep);
	(*ep)->fid = (struct fid){FI_CLASS_EP, context, &fid_ops};
	(*ep)->msg = &msg_ops;
	return 0;
}

static struct fi_ops_domain domain_ops = {
	.size = sizeof(struct fi_ops_domain), .cq_open = toy_cq, .endpoint = toy_endpoint};

static int toy_domain(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *context)
{
	*domain = calloc(1, sizeof **domain);
	(*domain)->fid = (struct fid){FI_CLASS_DOMAIN, context, &fid_ops};
	(*domain)->ops = &domain_ops;
	return 0;
}

static struct fi_ops_fabric fabric_ops = {.size = sizeof(struct fi_ops_fabric), .domain = toy_domain};

static int toy_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	*fabric = calloc(1, sizeof **fabric);
	(*fabric)->fid = (struct fid){FI_CLASS_FABRIC, context, &fid_ops};
	(*fabric)->ops = &fabric_ops;
	return 0;
}

static int toy_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
		       const struct fi_info *hints, struct fi_info **info)
{
	if (hints && hints->ep_attr && hints->ep_attr->type != FI_EP_UNSPEC && hints->ep_attr->type != FI_EP_RDM)
		return -FI_ENODATA;
	if (hints && hints->caps & ~(uint64_t)(FI_MSG | FI_SEND | FI_RECV))
		return -FI_ENODATA;
	*info = fi_allocinfo();
	(*info)->caps = FI_MSG | FI_SEND | FI_RECV;
	(*info)->ep_attr->type = FI_EP_RDM;
	(*info)->ep_attr->max_msg_size = sizeof box.bytes;
	(*info)->domain_attr->name = strdup("toybox");
	(*info)->fabric_attr->name = strdup("nursery");
	return 0;
}

static void toy_cleanup(void)
{
	const char *note = getenv("TOY_CLEANUP");
	if (note && *note)
		unsetenv("TOY_CLEANUP");
}

#if BAD != NO_SYMBOL
FI_EXT_INI
{
	static struct fi_provider provider = {.name = "toy",
					      .version = FI_VERSION(7, 3),
					      .fi_version = FI_VERSION(1, 17),
					      .getinfo = toy_getinfo,
					      .fabric = toy_fabric,
					      .cleanup = toy_cleanup};
	if (BAD == NO_CALLS)
		provider.getinfo = NULL;
	if (BAD == TOO_OLD)
		provider.fi_version = FI_VERSION(1, 2);
	if (BAD == NO_NAME)
		provider.name = NULL;
	if (BAD == OUR_NAME)
		provider.name = "shm";
	return BAD == NO_TABLE ? NULL : &provider;
}
#else
struct fi_provider *use_them_all(void);
struct fi_provider *use_them_all(void)
{
	static struct fi_provider provider = {.getinfo = toy_getinfo, .fabric = toy_fabric, .cleanup = toy_cleanup};
	return &provider;
}
#endif
