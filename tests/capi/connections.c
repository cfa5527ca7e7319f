/* FI_EP_MSG: listen, connect and accept with data, rejection with data, messages, shutdown. */
#include "profile.h"

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_eq *eq;
static struct fid_cq *cq[2];

/* The next event, or the negated number of an error. */
static int event(void *entry, size_t size)
{
	uint32_t number = 0;
	double end = now() + 20;
	for (;;) {
		ssize_t answer = fi_eq_sread(eq, &number, entry, size, 50, 0);
		if (answer >= 0)
			return (int)number;
		if (answer == -FI_EAVAIL)
			return -FI_EAVAIL;
		ANSWERS(answer, -FI_EAGAIN);
		CHECK(now() < end);
		fi_cq_read(cq[0], NULL, 0);
		fi_cq_read(cq[1], NULL, 0);
	}
}

static struct fid_ep *endpoint(struct fi_info *with, int at)
{
	struct fid_ep *ep;
	OK(fi_endpoint(domain, with, &ep, NULL));
	OK(fi_ep_bind(ep, &eq->fid, 0));
	OK(fi_ep_bind(ep, &cq[at]->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(ep));
	return ep;
}

struct entry {
	struct fi_eq_cm_entry cm;
	uint8_t data[256];
};

int main(void)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_UNSPEC};
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
	struct fid_pep *pep;
	struct entry entry;
	struct fi_eq_err_entry error = {0};
	struct fi_cq_tagged_entry completion;
	char name[256], in[16];
	size_t len = sizeof name, size = 0, size_len = sizeof size;
	int backlog = 8;

	hints->caps = FI_MSG;
	hints->ep_attr->type = FI_EP_MSG;
	hints->fabric_attr->prov_name = strdup("shm");
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	CHECK(info->ep_attr->type == FI_EP_MSG);
	fi_freeinfo(hints);
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
	OK(fi_cq_open(domain, &cq_attr, &cq[0], NULL));
	OK(fi_cq_open(domain, &cq_attr, &cq[1], NULL));

	OK(fi_passive_ep(fabric, info, &pep, NULL));
	ANSWERS(fi_close(&fabric->fid), -FI_EBUSY);
	OK(fi_pep_bind(pep, &eq->fid, 0));
	OK(fi_control(&pep->fid, FI_BACKLOG, &backlog));
	OK(fi_getopt(&pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &size, &size_len));
	CHECK(size >= 16);
	OK(fi_listen(pep));
	OK(fi_getname(&pep->fid, name, &len));

	/* Accepted, with data both ways. */
	struct fid_ep *client = endpoint(info, 0);
	OK(fi_connect(client, name, "please", 6));
	ANSWERS(event(&entry, sizeof entry), FI_CONNREQ);
	CHECK(entry.cm.fid == &pep->fid && entry.cm.info && entry.cm.info->handle);
	CHECK(!memcmp(entry.cm.data, "please", 6));
	struct fid_ep *server = endpoint(entry.cm.info, 1);
	fi_freeinfo(entry.cm.info);
	OK(fi_accept(server, "welcome", 7));
	for (int seen = 0; seen != 3;) {
		ANSWERS(event(&entry, sizeof entry), FI_CONNECTED);
		if (entry.cm.fid == &client->fid) {
			CHECK(!memcmp(entry.cm.data, "welcome", 7));
			seen |= 1;
		} else {
			CHECK(entry.cm.fid == &server->fid);
			seen |= 2;
		}
	}
	len = sizeof name;
	OK(fi_getpeer(server, name, &len));

	/* Counters of requests, acceptances and connections: those of each endpoint, and of their domain. */
	const struct {
		struct fid *fid;
		uint64_t requests, accepts, connections;
	} counted[] = {{&client->fid, 1, 0, 1}, {&server->fid, 0, 1, 1}, {&domain->fid, 1, 1, 2}};
	for (int at = 0; at < 3; at++) {
		struct profile *profile = NULL;
		OK(profile_open(counted[at].fid, 0, &profile, NULL));
		ANSWERS(value(profile, VAR_CONN_REQUEST), counted[at].requests);
		ANSWERS(value(profile, VAR_CONN_ACCEPT), counted[at].accepts);
		ANSWERS(value(profile, VAR_CONNECTION_CNT), counted[at].connections);
		uint64_t none;
		size_t none_size = sizeof none;
		ANSWERS(profile->ops->read_var(profile, VAR_CONN_REJECT, &none, &none_size), -FI_EINVAL);
		OK(fi_close(&profile->fid));
	}

	OK(fi_recv(server, in, sizeof in, NULL, 0, in));
	OK(fi_send(client, "hello", 5, NULL, 0, NULL));
	ssize_t answer;
	for (double end = now() + 20; (answer = fi_cq_read(cq[1], &completion, 1)) == -FI_EAGAIN && now() < end;)
		fi_cq_read(cq[0], NULL, 0);
	ANSWERS(answer, 1);
	CHECK(completion.op_context == in && completion.len == 5 && !memcmp(in, "hello", 5));

	OK(fi_shutdown(client, 0));
	ANSWERS(event(&entry, sizeof entry), FI_SHUTDOWN);
	CHECK(entry.cm.fid == &server->fid || entry.cm.fid == &client->fid);
	OK(fi_close(&client->fid));
	OK(fi_close(&server->fid));

	/* Rejected, with data. */
	len = sizeof name;
	OK(fi_getname(&pep->fid, name, &len));
	client = endpoint(info, 0);
	OK(fi_connect(client, name, NULL, 0));
	int number;
	while ((number = event(&entry, sizeof entry)) == FI_SHUTDOWN)
		;
	ANSWERS(number, FI_CONNREQ);
	OK(fi_reject(pep, entry.cm.info->handle, "no", 2));
	CHECK(fi_reject(pep, entry.cm.info->handle, "no", 2) < 0);
	fi_freeinfo(entry.cm.info);
	ANSWERS(event(&entry, sizeof entry), -FI_EAVAIL);
	ANSWERS(fi_eq_readerr(eq, &error, 0), sizeof error);
	CHECK(error.fid == &client->fid && error.context == client->fid.context && error.err == FI_ECONNREFUSED);
	CHECK(error.err_data_size == 2 && !memcmp(error.err_data, "no", 2));
	OK(fi_close(&client->fid));

	OK(fi_close(&pep->fid));
	OK(fi_close(&cq[0]->fid));
	OK(fi_close(&cq[1]->fid));
	OK(fi_close(&eq->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	fi_freeinfo(info);
	return 0;
}
