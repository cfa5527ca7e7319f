/* Blocking: the wait descriptor with epoll, fi_cq_sread, fi_cq_signal, and event queues that the program itself
 * writes to. */
#include "check.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

static struct pair pair;

static void *sender(void *arg)
{
	usleep(100000);
	POST(&pair, fi_inject(pair.ep[0], "wake", 4, pair.addr[1]));
	return arg;
}

static void epoll_on_the_descriptor(void)
{
	pthread_t thread;
	char in[8];
	int rx, fd = -1, set = epoll_create1(0);
	enum fi_wait_obj wait = FI_WAIT_NONE;
	struct epoll_event event = {.events = EPOLLIN};
	struct fi_cq_tagged_entry entry;
	struct fid *fids[] = {&pair.cq[1]->fid};
	double end = now() + 20;
	OK(fi_control(&pair.cq[1]->fid, FI_GETWAIT, &fd));
	OK(fi_control(&pair.cq[1]->fid, FI_GETWAITOBJ, &wait));
	CHECK(fd >= 0 && wait == FI_WAIT_FD);
	OK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
	POST(&pair, fi_recv(pair.ep[1], in, sizeof in, NULL, FI_ADDR_UNSPEC, &rx));
	OK(pthread_create(&thread, NULL, sender, NULL));
	for (;;) {
		ssize_t answer = fi_cq_read(pair.cq[1], &entry, 1);
		if (answer == 1)
			break;
		ANSWERS(answer, -FI_EAGAIN);
		CHECK(now() < end);
		if (fi_trywait(pair.fabric, fids, 1) == FI_SUCCESS)
			CHECK(epoll_wait(set, &event, 1, 10000) == 1);
	}
	CHECK(entry.op_context == &rx && entry.len == 4);
	OK(pthread_join(thread, NULL));
	close(set);
}

static void blocking_reads(void)
{
	pthread_t thread;
	char in[8];
	int rx;
	struct fi_cq_tagged_entry entry;
	double begin = now();
	ANSWERS(fi_cq_sread(pair.cq[1], &entry, 1, NULL, 50), -FI_EAGAIN);
	CHECK(now() - begin > 0.045);
	POST(&pair, fi_recv(pair.ep[1], in, sizeof in, NULL, FI_ADDR_UNSPEC, &rx));
	OK(pthread_create(&thread, NULL, sender, NULL));
	ANSWERS(fi_cq_sread(pair.cq[1], &entry, 1, NULL, 20000), 1);
	CHECK(entry.op_context == &rx);
	OK(pthread_join(thread, NULL));
	OK(fi_cq_signal(pair.cq[1]));
	ANSWERS(fi_cq_sread(pair.cq[1], &entry, 1, NULL, 20000), -FI_EAGAIN);
}

static void event_queues(void)
{
	struct fi_eq_attr attr = {.size = 2, .flags = FI_WRITE, .wait_obj = FI_WAIT_FD};
	struct fi_eq_entry in = {.data = 5}, out;
	struct fi_eq_err_entry error;
	struct fid_eq *eq;
	uint32_t event = 0;
	struct epoll_event ready = {.events = EPOLLIN};
	int fd = -1, set = epoll_create1(0);
	OK(fi_eq_open(pair.fabric, &attr, &eq, NULL));
	OK(fi_control(&eq->fid, FI_GETWAIT, &fd));
	OK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &ready));
	ANSWERS(fi_eq_read(eq, &event, &out, sizeof out, 0), -FI_EAGAIN);
	ANSWERS(fi_eq_readerr(eq, &error, 0), -FI_EAGAIN);
	ANSWERS(fi_eq_sread(eq, &event, &out, sizeof out, 20, 0), -FI_EAGAIN);
	CHECK(epoll_wait(set, &ready, 1, 0) == 0);
	ANSWERS(fi_eq_write(eq, FI_NOTIFY, &in, sizeof in, 0), sizeof in);
	in.data = 6;
	ANSWERS(fi_eq_write(eq, FI_NOTIFY, &in, sizeof in, 0), sizeof in);
	CHECK(epoll_wait(set, &ready, 1, 0) == 1);
	ANSWERS(fi_eq_read(eq, &event, &out, 1, 0), -FI_ETOOSMALL);
	ANSWERS(fi_eq_read(eq, &event, &out, sizeof out, FI_PEEK), sizeof out);
	ANSWERS(fi_eq_sread(eq, &event, &out, sizeof out, 1000, 0), sizeof out);
	CHECK(event == FI_NOTIFY && out.data == 5);
	ANSWERS(fi_eq_read(eq, &event, &out, sizeof out, 0), sizeof out);
	CHECK(out.data == 6);
	OK(fi_close(&eq->fid));
	close(set);
}

/* An event queue with FI_WAIT_MUTEX_COND, and one that belongs to a wait set. */
static void event_queues_of_older_programs(void)
{
	struct fi_eq_attr attr = {.flags = FI_WRITE, .wait_obj = FI_WAIT_MUTEX_COND};
	struct fi_wait_attr set_attr = {.wait_obj = FI_WAIT_UNSPEC};
	struct fi_eq_entry in = {.data = 7}, out;
	struct fi_mutex_cond woken = {NULL, NULL};
	struct timespec until;
	struct fid_wait *set;
	struct fid_eq *eq;
	uint32_t event = 0;
	OK(fi_eq_open(pair.fabric, &attr, &eq, NULL));
	OK(fi_control(&eq->fid, FI_GETWAIT, &woken));
	CHECK(woken.mutex && woken.cond);
	struct fid *fids[] = {&eq->fid};
	OK(fi_trywait(pair.fabric, fids, 1));
	OK(pthread_mutex_lock(woken.mutex));
	ANSWERS(fi_eq_write(eq, FI_NOTIFY, &in, sizeof in, 0), sizeof in);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 20;
	OK(pthread_cond_timedwait(woken.cond, woken.mutex, &until));
	OK(pthread_mutex_unlock(woken.mutex));
	ANSWERS(fi_trywait(pair.fabric, fids, 1), -FI_EAGAIN);
	ANSWERS(fi_eq_read(eq, &event, &out, sizeof out, 0), sizeof out);
	CHECK(out.data == 7);
	OK(fi_close(&eq->fid));
	OK(fi_wait_open(pair.fabric, &set_attr, &set));
	attr = (struct fi_eq_attr){.flags = FI_WRITE, .wait_obj = FI_WAIT_SET, .wait_set = set};
	OK(fi_eq_open(pair.fabric, &attr, &eq, NULL));
	ANSWERS(fi_wait(set, 20), -FI_ETIMEDOUT);
	ANSWERS(fi_eq_write(eq, FI_NOTIFY, &in, sizeof in, 0), sizeof in);
	OK(fi_wait(set, 20000));
	ANSWERS(fi_eq_sread(eq, &event, &out, sizeof out, 20, 0), -FI_EINVAL);
	ANSWERS(fi_eq_read(eq, &event, &out, sizeof out, 0), sizeof out);
	OK(fi_close(&eq->fid));
	OK(fi_close(&set->fid));
}

int main(void)
{
	pair_open_flags(&pair, FI_MSG, FI_WAIT_FD, 0);
	epoll_on_the_descriptor();
	blocking_reads();
	event_queues();
	event_queues_of_older_programs();
	pair_close(&pair);
	return 0;
}
