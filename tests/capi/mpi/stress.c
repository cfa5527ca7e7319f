/* Open MPI on the library: messages of all lengths, collectives, one-sided accesses, and many messages at once. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                  \
	do {                                                                              \
		if (!(condition)) {                                                       \
			printf("%s:%d: %s\n", __FILE__, __LINE__, #condition);            \
			MPI_Abort(MPI_COMM_WORLD, 1);                                     \
		}                                                                         \
	} while (0)

static int rank, ranks;

static int before(void) { return (rank + ranks - 1) % ranks; }
static int after(void) { return (rank + 1) % ranks; }

/* Around the ring, from no bytes (null buffers) to a mebibyte. */
static void lengths(void)
{
	for (int len = 0; len <= 1 << 20; len = len ? len * 4 : 1) {
		char *out = malloc(len + 1), *in = malloc(len + 1);
		memset(out, rank + 1, len);
		MPI_Sendrecv(len ? out : NULL, len, MPI_CHAR, after(), len, len ? in : NULL, len, MPI_CHAR, before(),
			     len, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int at = 0; at < len; at++)
			CHECK(in[at] == before() + 1);
		free(out);
		free(in);
	}
}

/* Empty messages from and to null buffers, in every way of sending and receiving. */
static void nothing(void)
{
	MPI_Request requests[4];
	MPI_Status state;
	int len = -1;
	MPI_Irecv(NULL, 0, MPI_CHAR, before(), 7, MPI_COMM_WORLD, &requests[0]);
	MPI_Irecv(NULL, 0, MPI_DOUBLE, MPI_ANY_SOURCE, 8, MPI_COMM_WORLD, &requests[1]);
	MPI_Isend(NULL, 0, MPI_CHAR, after(), 7, MPI_COMM_WORLD, &requests[2]);
	MPI_Issend(NULL, 0, MPI_DOUBLE, after(), 8, MPI_COMM_WORLD, &requests[3]);
	MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
	MPI_Isend(NULL, 0, MPI_CHAR, after(), 9, MPI_COMM_WORLD, &requests[0]);
	MPI_Probe(before(), 9, MPI_COMM_WORLD, &state);
	MPI_Get_count(&state, MPI_CHAR, &len);
	CHECK(len == 0 && state.MPI_SOURCE == before());
	MPI_Recv(NULL, 0, MPI_CHAR, before(), 9, MPI_COMM_WORLD, &state);
	MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
	MPI_Bcast(NULL, 0, MPI_INT, 0, MPI_COMM_WORLD);
	MPI_Allreduce(NULL, NULL, 0, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	MPI_Allgather(NULL, 0, MPI_INT, NULL, 0, MPI_INT, MPI_COMM_WORLD);
}

static void collectives(void)
{
	int sum = 0, *all = malloc(ranks * sizeof *all), root = rank == 0 ? 4711 : 0;
	MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	CHECK(sum == ranks * (ranks - 1) / 2);
	MPI_Allgather(&rank, 1, MPI_INT, all, 1, MPI_INT, MPI_COMM_WORLD);
	for (int at = 0; at < ranks; at++)
		CHECK(all[at] == at);
	for (int at = 0; at < ranks; at++)
		all[at] = rank * 100 + at;
	MPI_Alltoall(MPI_IN_PLACE, 1, MPI_INT, all, 1, MPI_INT, MPI_COMM_WORLD);
	for (int at = 0; at < ranks; at++)
		CHECK(all[at] == at * 100 + rank);
	MPI_Bcast(&root, 1, MPI_INT, 0, MPI_COMM_WORLD);
	CHECK(root == 4711);
	MPI_Gather(&rank, 1, MPI_INT, all, 1, MPI_INT, ranks - 1, MPI_COMM_WORLD);
	for (int at = 0; rank == ranks - 1 && at < ranks; at++)
		CHECK(all[at] == at);
	MPI_Scan(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	CHECK(sum == rank * (rank + 1) / 2);
	MPI_Barrier(MPI_COMM_WORLD);
	free(all);
}

static void one_sided(void)
{
	MPI_Win window;
	int *memory, value = rank + 100, one = 1, old;
	MPI_Win_allocate(64, sizeof *memory, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
	memset(memory, 0, 64);
	MPI_Win_fence(0, window);
	MPI_Put(&value, 1, MPI_INT, after(), 0, 1, MPI_INT, window);
	MPI_Win_fence(0, window);
	CHECK(memory[0] == before() + 100);
	MPI_Win_lock_all(0, window);
	MPI_Fetch_and_op(&one, &old, MPI_INT, 0, 1, MPI_SUM, window);
	MPI_Win_flush(0, window);
	MPI_Win_unlock_all(window);
	MPI_Barrier(MPI_COMM_WORLD);
	CHECK(rank != 0 || memory[1] == ranks);
	MPI_Win_free(&window);

	/* A window of the program's own memory: reads, additions and swaps. */
	static int own[1024];
	int got[1024], expected = 0, swapped = -1, mine = rank + 1;
	memset(own, 0, sizeof own);
	own[5] = rank;
	MPI_Win_create(own, sizeof own, sizeof *own, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
	MPI_Win_fence(0, window);
	MPI_Get(got, 1024, MPI_INT, after(), 0, 1024, MPI_INT, window);
	MPI_Put(NULL, 0, MPI_INT, after(), 0, 0, MPI_INT, window);
	MPI_Accumulate(&mine, 1, MPI_INT, 0, 1, 1, MPI_INT, MPI_SUM, window);
	MPI_Win_fence(0, window);
	CHECK(got[5] == after());
	CHECK(rank != 0 || own[1] == ranks * (ranks + 1) / 2);
	MPI_Win_lock_all(0, window);
	MPI_Compare_and_swap(&mine, &expected, &swapped, MPI_INT, 0, 2, window);
	MPI_Win_flush_all(window);
	MPI_Win_unlock_all(window);
	MPI_Barrier(MPI_COMM_WORLD);
	int first = swapped == 0, all_first;
	MPI_Allreduce(&first, &all_first, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	CHECK(all_first == 1);
	MPI_Win_free(&window);
}

/* A hundred messages each way at once, received from any source by tag, twenty times. */
static void many(void)
{
	static char buffers[200][3000];
	MPI_Request requests[200];
	MPI_Status states[200];
	for (int round = 0; round < 20; round++) {
		for (int at = 0; at < 100; at++) {
			int len = at * 37 % 3000;
			memset(buffers[100 + at], at + round, len);
			MPI_Irecv(buffers[at], 3000, MPI_CHAR, MPI_ANY_SOURCE, at, MPI_COMM_WORLD, &requests[at]);
			MPI_Isend(buffers[100 + at], len, MPI_CHAR, after(), at, MPI_COMM_WORLD, &requests[100 + at]);
		}
		MPI_Waitall(200, requests, states);
		for (int at = 0; at < 100; at++) {
			int len;
			MPI_Get_count(&states[at], MPI_CHAR, &len);
			CHECK(len == at * 37 % 3000);
			CHECK(len == 0 || buffers[at][len - 1] == (char)(at + round));
		}
		MPI_Barrier(MPI_COMM_WORLD);
	}
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	lengths();
	nothing();
	collectives();
	one_sided();
	many();
	MPI_Finalize();
	return 0;
}
