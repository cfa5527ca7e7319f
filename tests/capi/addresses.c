/* An endpoint without an address of its own accepts traffic at every address of the host, and answers from the address
 * that the peer used. */
#include "check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq[2];
static struct fid_eq *eq[2];

static struct fi_info *info_of(enum fi_ep_type type, uint64_t caps, const char *node, const char *service, uint64_t flags)
{
	struct fi_info *hints = fi_allocinfo(), *found = NULL;
	hints->caps = caps;
	hints->ep_attr->type = type;
	hints->fabric_attr->prov_name = strdup("udp");
	OK(fi_getinfo(FI_VERSION(1, 17), node, service, flags, hints, &found));
	fi_freeinfo(hints);
	return found;
}

static int port_of(const void *address)
{
	const struct sockaddr *any = address;
	if (any->sa_family == AF_INET6)
		return ntohs(((const struct sockaddr_in6 *)address)->sin6_port);
	CHECK(any->sa_family == AF_INET);
	return ntohs(((const struct sockaddr_in *)address)->sin_port);
}

static void open_domain(struct fi_info *info)
{
	struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_UNSPEC};
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_av_open(domain, &av_attr, &av, NULL));
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
	OK(fi_close(&av->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
}

static struct fid_ep *open_ep(struct fi_info *info, int at)
{
	struct fid_ep *ep;
	OK(fi_endpoint(domain, info, &ep, NULL));
	if (info->ep_attr->type == FI_EP_MSG)
		OK(fi_ep_bind(ep, &eq[at]->fid, 0));
	else
		OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_ep_bind(ep, &cq[at]->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(ep));
	return ep;
}

static ssize_t next(int at, struct fi_cq_tagged_entry *entry, fi_addr_t *from)
{
	double end = now() + 20;
	for (;;) {
		ssize_t answer = fi_cq_readfrom(cq[at], entry, 1, from);
		if (answer != -FI_EAGAIN)
			return answer;
		fi_cq_read(cq[!at], NULL, 0);
		CHECK(now() < end);
	}
}

static void hand(struct fid_ep *from, int at, struct fid_ep *to, fi_addr_t address, fi_addr_t source)
{
	struct fi_cq_tagged_entry entry;
	char in[8];
	fi_addr_t found = FI_ADDR_NOTAVAIL;
	double end = now() + 20;
	ssize_t answer;
	OK(fi_recv(to, in, sizeof in, NULL, FI_ADDR_UNSPEC, in));
	while ((answer = fi_send(from, "hello", 5, NULL, address, NULL)) == -FI_EAGAIN && now() < end) {
		fi_cq_read(cq[0], NULL, 0);
		fi_cq_read(cq[1], NULL, 0);
	}
	OK(answer);
	ANSWERS(next(at, &entry, &found), 1);
	ANSWERS(next(!at, &entry, &found), 1);
	CHECK(!memcmp(in, "hello", 5));
	if (found != source)
		fprintf(stderr, "from %s to %s\n", at ? "client" : "server", at ? "server" : "client");
	ANSWERS(found, source);
}

/* What fi_av_straddr prints is a node of fi_av_insertsvc and of fi_getinfo, without a service. */
static void texts(enum fi_ep_type type, fi_addr_t to)
{
	char name[64], text[128];
	size_t len = sizeof name, text_len = sizeof text;
	fi_addr_t again = FI_ADDR_NOTAVAIL;
	OK(fi_av_lookup(av, to, name, &len));
	CHECK(fi_av_straddr(av, name, text, &text_len) == text && !strncmp(text, "fi_sockaddr_in", 14));
	ANSWERS(fi_av_insertsvc(av, text, NULL, &again, 0, NULL), 1);
	ANSWERS(again, to);
	ANSWERS(fi_av_remove(av, &again, 1, 0), 0); /* once for each insertion */
	struct fi_info *info = info_of(type, FI_MSG, text, NULL, 0);
	CHECK(info->dest_addrlen == len && !memcmp(info->dest_addr, name, len));
	fi_freeinfo(info);
}

/* A server bound to a port only, and clients that reach it at different addresses. */
static void datagrams(enum fi_ep_type type, const char *const *hosts, const char *own)
{
	struct fi_info *here = NULL, *hints = fi_allocinfo();
	struct sockaddr_in6 place;
	char port[8];
	hints->caps = FI_MSG | FI_SOURCE;
	hints->ep_attr->type = type;
	hints->addr_format = own ? FI_SOCKADDR_IN6 : FI_SOCKADDR_IN;
	hints->fabric_attr->prov_name = strdup("udp");
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, "0", FI_SOURCE, hints, &here));
	fi_freeinfo(hints);
	open_domain(here);
	struct fid_ep *server = open_ep(here, 0);
	size_t len = sizeof place;
	OK(fi_getname(&server->fid, &place, &len));
	snprintf(port, sizeof port, "%d", port_of(&place));
	CHECK(strcmp(port, "0"));
	for (; *hosts; hosts++) {
		struct fi_info *there = info_of(type, FI_MSG | FI_SOURCE, *hosts, port, 0);
		fi_addr_t to, back;
		/* The domain of `there` may have another name: that of the interface that routes to the host. */
		struct fid_ep *client = open_ep(there, 1);
		ANSWERS(fi_av_insert(av, there->dest_addr, 1, &to, 0, NULL), 1);
		texts(type, to);
		len = sizeof place;
		OK(fi_getname(&client->fid, &place, &len));
		ANSWERS(fi_av_insert(av, &place, 1, &back, 0, NULL), 1);
		if (getenv("CASES"))
			fprintf(stderr, "type %d, %s\n", type, *hosts);
		for (int round = 0; round < 3; round++) {
			hand(client, 1, server, to, back);
			hand(server, 0, client, back, to);
		}
		OK(fi_close(&client->fid));
		ANSWERS(fi_av_remove(av, &to, 1, 0), 0);
		ANSWERS(fi_av_remove(av, &back, 1, 0), 0);
		fi_freeinfo(there);
	}
	OK(fi_close(&server->fid));
	close_domain();
	fi_freeinfo(here);
}

static void event(int at, uint32_t wanted, struct fi_eq_cm_entry *entry)
{
	double end = now() + 20;
	for (;;) {
		uint32_t number = 0;
		ssize_t answer = fi_eq_sread(eq[at], &number, entry, sizeof *entry, 5, 0);
		if (answer >= 0) {
			ANSWERS(number, wanted);
			return;
		}
		ANSWERS(answer, -FI_EAGAIN);
		CHECK(now() < end);
		fi_cq_read(cq[0], NULL, 0);
		fi_cq_read(cq[1], NULL, 0);
	}
}

static void connections(const char *const *hosts)
{
	struct fi_info *here = info_of(FI_EP_MSG, FI_MSG, NULL, "0", FI_SOURCE);
	struct sockaddr_in6 place;
	struct fi_eq_cm_entry entry;
	struct fid_pep *pep;
	char port[8];
	size_t len = sizeof place;
	open_domain(here);
	OK(fi_passive_ep(fabric, here, &pep, NULL));
	OK(fi_pep_bind(pep, &eq[0]->fid, 0));
	OK(fi_listen(pep));
	OK(fi_getname(&pep->fid, &place, &len));
	snprintf(port, sizeof port, "%d", port_of(&place));
	for (; *hosts; hosts++) {
		struct fi_info *there = info_of(FI_EP_MSG, FI_MSG, *hosts, port, 0);
		struct sockaddr_in asked, *source;
		struct fid_ep *client = open_ep(there, 1);
		OK(fi_connect(client, there->dest_addr, NULL, 0));
		event(0, FI_CONNREQ, &entry);
		/* The request carries the address that the client used. */
		source = entry.info->src_addr;
		memcpy(&asked, there->dest_addr, sizeof asked);
		CHECK(source->sin_addr.s_addr == asked.sin_addr.s_addr && source->sin_port == asked.sin_port);
		struct fid_ep *server = open_ep(entry.info, 0);
		fi_freeinfo(entry.info);
		OK(fi_accept(server, NULL, 0));
		event(1, FI_CONNECTED, &entry);
		event(0, FI_CONNECTED, &entry);
		hand(client, 1, server, 0, FI_ADDR_NOTAVAIL);
		hand(server, 0, client, 0, FI_ADDR_NOTAVAIL);
		OK(fi_close(&client->fid));
		event(0, FI_SHUTDOWN, &entry);
		OK(fi_close(&server->fid));
		fi_freeinfo(there);
	}
	OK(fi_close(&pep->fid));
	close_domain();
	fi_freeinfo(here);
}

int main(int argc, char **argv)
{
	/* 127.0.0.5 is an address of this host like any other. The command line may add more. */
	const char *hosts[16] = {"127.0.0.1", "127.0.0.5"};
	const char *const six[] = {"::1", NULL};
	for (int at = 1; at < argc && at < 13; at++)
		hosts[at + 1] = argv[at];
	for (int shared = 0; shared < 2; shared++) {
		setenv("FI_UDP_SHARED_MEMORY", shared ? "1" : "0", 1);
		datagrams(FI_EP_RDM, hosts, NULL);
		datagrams(FI_EP_DGRAM, hosts, NULL);
		connections(hosts);
		if (!access("/proc/net/if_inet6", R_OK))
			datagrams(FI_EP_RDM, six, "six");
	}
	return 0;
}
