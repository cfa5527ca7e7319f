/* Habits of programs that are targets of remote writes, such as MXL: only a receive queue, a passive endpoint that is
 * closed right after fi_accept, registrations of unmapped memory. */
#include "check.h"

static const char *provider;
static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_eq *eq[2];
static struct fid_cq *cq[2];

static struct fi_info *info_of(enum fi_ep_type type, uint64_t caps)
{
	struct fi_info *hints = fi_allocinfo(), *found = NULL;
	hints->caps = caps;
	hints->ep_attr->type = type;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup(provider);
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found));
	fi_freeinfo(hints);
	return found;
}

static void open_domain(struct fi_info *with)
{
	struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_UNSPEC};
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_DATA};
	info = with;
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	for (int at = 0; at < 2; at++) {
		OK(fi_eq_open(fabric, &eq_attr, &eq[at], NULL));
		OK(fi_cq_open(domain, &cq_attr, &cq[at], NULL));
	}
}

static void close_domain(void)
{
	for (int at = 0; at < 2; at++) {
		OK(fi_close(&cq[at]->fid));
		OK(fi_close(&eq[at]->fid));
	}
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
}

/* An endpoint that is only a target of writes needs no transmit queue; one that writes needs one. */
static void queues(void)
{
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	struct fid_av *av;
	struct fid_ep *ep;
	const struct {
		uint64_t caps, bound;
		int answer;
	} cases[] = {
		{FI_RMA | FI_REMOTE_WRITE, FI_RECV, 0},
		{FI_RMA | FI_REMOTE_WRITE, FI_RECV | FI_TRANSMIT, 0},
		{FI_RMA | FI_REMOTE_WRITE | FI_RECV, FI_RECV, 0},
		{FI_MSG | FI_RECV | FI_RMA | FI_REMOTE_READ | FI_REMOTE_WRITE, FI_RECV, 0},
		{FI_RMA | FI_WRITE, FI_RECV, -FI_ENOCQ},
		{FI_RMA, FI_RECV, -FI_ENOCQ},
		{FI_MSG | FI_RMA | FI_REMOTE_WRITE, FI_RECV, -FI_ENOCQ},
	};
	for (size_t at = 0; at < sizeof cases / sizeof *cases; at++) {
		open_domain(info_of(FI_EP_RDM, cases[at].caps));
		OK(fi_av_open(domain, &av_attr, &av, NULL));
		OK(fi_endpoint(domain, info, &ep, NULL));
		OK(fi_ep_bind(ep, &av->fid, 0));
		OK(fi_ep_bind(ep, &cq[0]->fid, cases[at].bound));
		ANSWERS(fi_enable(ep), cases[at].answer);
		OK(fi_close(&ep->fid));
		OK(fi_close(&av->fid));
		close_domain();
	}
}

/* An event, and room for its connection data. */
struct entry {
	struct fi_eq_cm_entry cm;
	uint8_t data[256];
};

/* The next event of one side, or the negated number of an error. Drives both sides. */
static int event(int at, struct entry *entry)
{
	struct fi_eq_err_entry error = {0};
	double end = now() + 20;
	for (;;) {
		uint32_t number = 0;
		ssize_t answer = fi_eq_sread(eq[at], &number, entry, sizeof *entry, 5, 0);
		if (answer >= 0)
			return (int)number;
		if (answer == -FI_EAVAIL) {
			CHECK(fi_eq_readerr(eq[at], &error, 0) > 0);
			return -error.err;
		}
		ANSWERS(answer, -FI_EAGAIN);
		CHECK(now() < end);
		fi_cq_read(cq[0], NULL, 0);
		fi_cq_read(cq[1], NULL, 0);
	}
}

static struct fid_ep *connected_ep(struct fi_info *with, int at, uint64_t bound)
{
	struct fid_ep *ep;
	OK(fi_endpoint(domain, with, &ep, NULL));
	OK(fi_ep_bind(ep, &eq[at]->fid, 0));
	OK(fi_ep_bind(ep, &cq[at]->fid, bound));
	OK(fi_enable(ep));
	return ep;
}

/* A program that serves one client closes its passive endpoint right after fi_accept. The connection still opens. */
static void closed_after_accept(void)
{
	struct entry entry;
	open_domain(info_of(FI_EP_MSG, FI_MSG | FI_RMA));
	for (int round = 0; round < 20; round++) {
		struct fid_pep *pep;
		char name[256];
		size_t len = sizeof name;
		OK(fi_passive_ep(fabric, info, &pep, NULL));
		OK(fi_pep_bind(pep, &eq[0]->fid, 0));
		OK(fi_listen(pep));
		OK(fi_getname(&pep->fid, name, &len));
		struct fid_ep *client = connected_ep(info, 1, FI_TRANSMIT | FI_RECV);
		OK(fi_connect(client, name, NULL, 0));
		ANSWERS(event(0, &entry), FI_CONNREQ);
		struct fid_ep *server = connected_ep(entry.cm.info, 0, FI_TRANSMIT | FI_RECV);
		fi_freeinfo(entry.cm.info);
		OK(fi_accept(server, "x", 1));
		OK(fi_close(&pep->fid));
		ANSWERS(event(1, &entry), FI_CONNECTED);
		ANSWERS(event(0, &entry), FI_CONNECTED);
		OK(fi_close(&client->fid));
		OK(fi_close(&server->fid));
		ssize_t answer;
		uint32_t number;
		for (int at = 0; at < 2; at++)
			while ((answer = fi_eq_read(eq[at], &number, &entry, sizeof entry, 0)) != -FI_EAGAIN)
				CHECK(answer > 0 && number == FI_SHUTDOWN);
	}
	close_domain();
}

/* Registration does not touch the memory: unmapped addresses may be registered, as with C's providers. */
static void not_mapped(enum fi_ep_type type)
{
	struct iovec place = {(void *)0x1000, 4096};
	struct fi_mr_attr attr = {.mr_iov = &place, .iov_count = 1, .access = FI_WRITE | FI_REMOTE_WRITE, .requested_key = 7};
	struct fid_mr *mr;
	open_domain(info_of(type, FI_MSG | FI_RMA));
	OK(fi_mr_regattr(domain, &attr, 0, &mr));
	CHECK(fi_mr_key(mr) != FI_KEY_NOTAVAIL);
	OK(fi_close(&mr->fid));
	close_domain();
}

int main(void)
{
	const char *const providers[] = {"shm", "udp"};
	for (int at = 0; at < 2; at++) {
		provider = providers[at];
		queues();
		closed_after_accept();
		not_mapped(FI_EP_RDM);
		not_mapped(FI_EP_MSG);
	}
	return 0;
}
