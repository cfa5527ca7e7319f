// Resident memory of an endpoint with peers in another process, after a message to and from each.
// Arguments: the provider, and numbers of peers, ascending. Prints a line of KiB for each.

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define NAME 256
#define BYTES 64

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
// The process with the peers; 0 in that process itself.
static pid_t child;

struct end {
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_av *av;
    struct fi_context2 context[2];
    char *memory;
};

static void check(int code, const char *what)
{
    if (code < 0) {
        fprintf(stderr, "%s: %s\n", what, fi_strerror(-code));
        exit(1);
    }
}

static void start(const char *provider)
{
    struct fi_info *hints = fi_allocinfo();
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->fabric_attr->prov_name = strdup(provider);
    const char *node = strcmp(provider, "shm") ? "127.0.0.1" : NULL;
    check(fi_getinfo(FI_VERSION(1, 20), node, NULL, node ? FI_SOURCE : 0, hints, &info), "fi_getinfo");
    check(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
    check(fi_domain(fabric, info, &domain, NULL), "fi_domain");
}

static void post(struct end *end)
{
    check(fi_recv(end->ep, end->memory, BYTES, NULL, FI_ADDR_UNSPEC, &end->context[0]), "fi_recv");
}

static void open_end(struct end *end)
{
    struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_MSG };
    struct fi_av_attr av = { .type = FI_AV_TABLE };
    check(fi_endpoint(domain, info, &end->ep, NULL), "fi_endpoint");
    check(fi_cq_open(domain, &cq, &end->cq, NULL), "fi_cq_open");
    check(fi_av_open(domain, &av, &end->av, NULL), "fi_av_open");
    check(fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    check(fi_ep_bind(end->ep, &end->av->fid, 0), "fi_ep_bind");
    check(fi_enable(end->ep), "fi_enable");
    end->memory = calloc(2, BYTES);
}

static void name_of(struct end *end, char *name)
{
    size_t len = NAME;
    memset(name, 0, NAME);
    check(fi_getname(&end->ep->fid, name, &len), "fi_getname");
}

static fi_addr_t insert(struct end *end, const char *name)
{
    fi_addr_t peer;
    check(fi_av_insert(end->av, name, 1, &peer, 0, NULL) == 1 ? 0 : -1, "fi_av_insert");
    return peer;
}

// Ends this process if the one with the peers has ended: nothing would ever come from it.
static void watch(void)
{
    if (child && waitpid(child, NULL, WNOHANG) != 0) {
        fprintf(stderr, "the process with the peers has ended\n");
        exit(1);
    }
}

static int poll_cq(struct end *end)
{
    static unsigned polls;
    struct fi_cq_msg_entry entries[4];
    if (++polls % 1024 == 0)
        watch();
    ssize_t count = fi_cq_read(end->cq, entries, 4);
    if (count == -FI_EAGAIN)
        return 0;
    check(count, "fi_cq_read");
    return count;
}

// Sends a message and returns once that has ended and `more` others have.
static void send_one(struct end *end, fi_addr_t to, int more, struct end *other)
{
    int wanted = 1 + more;
    ssize_t sent;
    while ((sent = fi_send(end->ep, end->memory + BYTES, BYTES, NULL, to, &end->context[1])) == -FI_EAGAIN)
        wanted -= poll_cq(end);
    check(sent, "fi_send");
    while (wanted > 0) {
        wanted -= poll_cq(end);
        if (other)
            poll_cq(other);
    }
}

static void fill(int fd, void *to, size_t len)
{
    for (char *at = to; len > 0;) {
        ssize_t got = read(fd, at, len);
        if (got <= 0) {
            // The process with the peers is told so that it is over; the other one has lost its peers.
            if (child)
                fprintf(stderr, "the process with the peers has closed its pipe\n");
            exit(child ? 1 : 0);
        }
        at += got;
        len -= got;
    }
}

static void put(int fd, const void *from, size_t len)
{
    check(write(fd, from, len) == (ssize_t)len ? 0 : -1, "write");
}

static void serve(const char *provider, int from, int to)
{
    char name[NAME];
    int count;
    start(provider);
    fill(from, name, NAME);
    struct end *before = NULL;
    for (;;) {
        fill(from, &count, sizeof count);
        struct end *ends = calloc(count, sizeof *ends);
        for (int at = 0; at < count; at++) {
            char own[NAME];
            open_end(&ends[at]);
            post(&ends[at]);
            name_of(&ends[at], own);
            put(to, own, NAME);
        }
        for (int at = 0; at < count; at++) {
            fi_addr_t peer = insert(&ends[at], name);
            while (poll_cq(&ends[at]) == 0)
                if (before)
                    poll_cq(before);
            send_one(&ends[at], peer, 0, before);
            before = &ends[at];
        }
        // The last acknowledgements.
        for (int n = 0; n < 20000; n++)
            poll_cq(before);
        put(to, &count, sizeof count);
    }
}

static long resident(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*d %ld", &pages) != 1)
        exit(1);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

int main(int argc, char **argv)
{
    int down[2], up[2], done = 0;
    if (argc < 2 || pipe(down) || pipe(up))
        return 1;
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    pid_t parent = getpid();
    child = fork();
    if (child < 0) {
        perror("fork");
        return 1;
    }
    if (child == 0) {
        // It dies with its parent, which may have ended before the kernel knew of this.
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
            _exit(1);
        close(down[1]);
        close(up[0]);
        serve(argv[1], down[0], up[1]);
    }
    close(down[0]);
    close(up[1]);
    start(argv[1]);
    long before = resident();
    struct end end;
    char name[NAME];
    open_end(&end);
    name_of(&end, name);
    put(down[1], name, NAME);
    printf("0 %ld\n", resident() - before);
    for (int arg = 2; arg < argc; arg++) {
        int more = atoi(argv[arg]) - done, count;
        fi_addr_t *peers = calloc(more, sizeof *peers);
        put(down[1], &more, sizeof more);
        for (int at = 0; at < more; at++) {
            fill(up[0], name, NAME);
            peers[at] = insert(&end, name);
        }
        for (int at = 0; at < more; at++) {
            post(&end);
            send_one(&end, peers[at], 1, NULL);
        }
        fill(up[0], &count, sizeof count);
        done += more;
        printf("%d %ld\n", done, resident() - before);
        fflush(stdout);
    }
    // The other process ends by itself, and so removes its shared memory, before this one's end would kill it.
    close(down[1]);
    waitpid(child, NULL, 0);
    return 0;
}
