// Times all-reduces of one number. Rank 0 prints the nanoseconds of one.
// Arguments: how many, and two cores, on which the ranks run by turns.

#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void all_reduce(long count)
{
    uint64_t mine = 1, sum = 0;
    for (long n = 0; n < count; n++)
        MPI_Allreduce(&mine, &sum, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc != 4)
        MPI_Abort(MPI_COMM_WORLD, 2);
    long count = atol(argv[1]);
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(atoi(argv[2 + rank % 2]), &cores);
    if (sched_setaffinity(0, sizeof cores, &cores) != 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    all_reduce(count / 20 + 10);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    all_reduce(count);
    double each = (MPI_Wtime() - begin) / count;
    if (rank == 0)
        printf("%.1f\n", each * 1e9);
    MPI_Finalize();
    return 0;
}
