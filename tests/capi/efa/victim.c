/* A process to be killed, on C's library over efa: it says its endpoint's name, takes packets, and posts no receive. So it owes what is sent
 * to it a receipt, word to send more, or word that it has been read. It ends with its standard input, too. */
#include <fcntl.h>
#include <unistd.h>

#include "check.h"

int main(void)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_NONE};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	hints->caps = FI_MSG | FI_RMA;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup("efa");
	hints->fabric_attr->name = strdup("efa");
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_av_open(domain, &av_attr, &av, NULL));
	OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_enable(ep));

	unsigned char name[256];
	size_t len = sizeof name;
	OK(fi_getname(&ep->fid, name, &len));
	for (size_t at = 0; at < len; at++)
		printf("%02x", name[at]);
	puts("");
	fflush(stdout);

	struct fi_cq_data_entry entry;
	char word;
	ANSWERS(read(0, &word, 1), 1);
	OK(fcntl(0, F_SETFL, O_NONBLOCK));
	while (read(0, &word, 1))
		ANSWERS(fi_cq_read(cq, &entry, 1), -FI_EAGAIN);
	return 0;
}
