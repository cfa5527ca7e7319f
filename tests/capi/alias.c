/* A provider under another name (FI_PROVIDER_ALIAS) offers what programs expect from that name. */
#include "check.h"

static struct fi_info *find(struct fi_info *all, const char *name, enum fi_ep_type type)
{
	for (; all; all = all->next)
		if (!strcmp(all->fabric_attr->prov_name, name) && all->ep_attr->type == type)
			return all;
	return NULL;
}

static int opens(struct fi_info *info)
{
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep;
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_close(&ep->fid));
	OK(fi_close(&domain->fid));
	OK(fi_close(&fabric->fid));
	return 1;
}

int main(void)
{
	struct fi_info *all = NULL, *info, *hints = fi_allocinfo();
	setenv("FI_PROVIDER_ALIAS", "tcp=udp", 1);

	/* Without hints the alias is listed, as C's tcp is. */
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, NULL, &all));
	CHECK(find(all, "udp", FI_EP_RDM) && find(all, "shm", FI_EP_RDM));
	CHECK((info = find(all, "tcp", FI_EP_MSG)));
	CHECK(info->ep_attr->protocol == FI_PROTO_SOCK_TCP);
	CHECK((info->caps & (FI_MSG | FI_RMA)) == (FI_MSG | FI_RMA));
	CHECK(!((info->caps | info->tx_attr->caps | info->rx_attr->caps) & (FI_TAGGED | FI_ATOMIC)));
	CHECK(opens(info));
	CHECK((info = find(all, "tcp", FI_EP_RDM)));
	CHECK(info->caps & FI_TAGGED && !(info->caps & FI_ATOMIC) && opens(info));
	CHECK(!find(all, "tcp", FI_EP_DGRAM));
	fi_freeinfo(all);

	/* Hints select it by name and protocol, with a capability that C's tcp lacks. */
	hints->fabric_attr->prov_name = strdup("tcp");
	hints->ep_attr->type = FI_EP_MSG;
	hints->ep_attr->protocol = FI_PROTO_SOCK_TCP;
	hints->caps = FI_MSG | FI_TAGGED;
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &all));
	for (info = all; info; info = info->next)
		CHECK(!strcmp(info->fabric_attr->prov_name, "tcp") && info->ep_attr->protocol == FI_PROTO_SOCK_TCP);
	CHECK(all->caps & FI_TAGGED && opens(all));
	fi_freeinfo(all);
	hints->ep_attr->protocol = FI_PROTO_RXM;
	ANSWERS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &all), -FI_ENODATA);
	fi_freeinfo(hints);

	/* Without the setting the name is the provider's own, and other names are nobody's. */
	unsetenv("FI_PROVIDER_ALIAS");
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, NULL, &all));
	CHECK((info = find(all, "tcp", FI_EP_RDM)) && info->ep_attr->protocol == FI_PROTO_XNET && opens(info));
	for (; info; info = info->next)
		CHECK(!strcmp(info->fabric_attr->prov_name, "tcp"));
	CHECK((info = find(all, "tcp", FI_EP_MSG)) && info->ep_attr->protocol == FI_PROTO_SOCK_TCP && opens(info));
	CHECK(!find(all, "sockets", FI_EP_MSG));
	fi_freeinfo(all);
	return 0;
}
