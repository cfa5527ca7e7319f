/*
 * Forked children of a program with a writer and readers that wait: one ends, one releases everything and then ends.
 * Either way the parent's flow stays as it was. Takes a domain.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

#define FIRST 1000
#define COUNT 10

static mxlFlowReader reader;

/* Waits for each picture in turn, so that a thread of the parent is inside the library during the forks. */
static void *read_all(void *none)
{
	mxlGrainInfo grain;
	uint8_t *payload;

	for (uint64_t index = FIRST; index < FIRST + COUNT; index++) {
		OK(mxlFlowReaderGetGrain(reader, index, 30 * second, &grain, &payload));
		CHECK(payload[0] == (uint8_t)index);
	}
	return none;
}

static void write_one(mxlFlowWriter writer, uint64_t index)
{
	mxlGrainInfo grain;
	uint8_t *payload;

	OK(mxlFlowWriterOpenGrain(writer, index, &grain, &payload));
	memset(payload, (int)(uint8_t)index, grain.grainSize);
	grain.validSlices = grain.totalSlices;
	OK(mxlFlowWriterCommitGrain(writer, &grain));
}

int main(int argc, char **argv)
{
	mxlInstance instance;
	mxlFlowWriter writer;
	pthread_t thread;
	bool is_active = false;

	CHECK(argc == 2);
	instance = mxlCreateInstance(argv[1], NULL);
	CHECK(instance);
	OK(mxlCreateFlowWriter(instance, video_definition, NULL, &writer, NULL, NULL));
	OK(mxlCreateFlowReader(instance, VIDEO, NULL, &reader));
	CHECK(pthread_create(&thread, NULL, read_all, NULL) == 0);
	for (int at = 0; at < COUNT; at++) {
		int status;
		pid_t child = fork();

		CHECK(child >= 0);
		if (child == 0) {
			alarm(20);
			if (at % 2 == 1) {
				OK(mxlReleaseFlowReader(instance, reader));
				OK(mxlReleaseFlowWriter(instance, writer));
				OK(mxlDestroyInstance(instance));
			}
			exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
		OK(mxlIsFlowActive(instance, VIDEO, &is_active));
		CHECK(is_active);
		write_one(writer, FIRST + at);
	}
	CHECK(pthread_join(thread, NULL) == 0);
	OK(mxlReleaseFlowReader(instance, reader));
	OK(mxlReleaseFlowWriter(instance, writer));
	OK(mxlDestroyInstance(instance));
	return 0;
}
