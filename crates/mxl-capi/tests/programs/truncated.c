/* Another process truncates files of flows that this one reads and writes, by calls and by address: the calls then
 * return MXL_ERR_FLOW_INVALID, and no signal ends this process. A SIGBUS elsewhere does end it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mxl/time.h>

#include "common.h"

static const char *domain;

/* Starts a process that truncates a file of a flow after 20 ms. */
static pid_t truncates(const char *id, const char *name)
{
	char path[512];
	pid_t child;

	snprintf(path, sizeof(path), "%s/%s.mxl-flow/%s", domain, id, name);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		usleep(20000);
		_exit(truncate(path, 0) == 0 ? 0 : 1);
	}
	return child;
}

static void ended(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static unsigned sum(const volatile uint8_t *bytes, size_t size)
{
	unsigned sum = 0;

	for (size_t i = 0; i < size; i++)
		sum += bytes[i];
	return sum;
}

/* Reads (or writes) until a call fails, for 20 s at most; the status. */
static mxlStatus grains(mxlInstance instance, bool writes, const char *file)
{
	mxlFlowWriter writer = NULL;
	mxlFlowReader reader = NULL;
	mxlGrainInfo grain;
	uint8_t *payload = NULL;
	mxlStatus status = MXL_STATUS_OK;
	uint64_t index = 100, end = mxlGetTime() + 20000000000;
	mxlFlowRuntimeInfo runtime;

	OK(mxlCreateFlowWriter(instance, video_definition, NULL, &writer, NULL, NULL));
	OK(mxlCreateFlowReader(instance, VIDEO, NULL, &reader));
	OK(mxlFlowWriterOpenGrain(writer, index, &grain, &payload));
	memset(payload, 1, grain.grainSize);
	grain.validSlices = grain.totalSlices;
	OK(mxlFlowWriterCommitGrain(writer, &grain));
	pid_t child = truncates(VIDEO, file);
	while (status == MXL_STATUS_OK && mxlGetTime() < end) {
		if (writes) {
			status = mxlFlowWriterOpenGrain(writer, ++index, &grain, &payload);
			if (status != MXL_STATUS_OK)
				break;
			memset(payload, 2, grain.grainSize);
			grain.validSlices = grain.totalSlices;
			status = mxlFlowWriterCommitGrain(writer, &grain);
		} else {
			status = mxlFlowReaderGetGrain(reader, index, 1000000, &grain, &payload);
			if (status != MXL_STATUS_OK)
				break;
			unsigned found = sum(payload, grain.grainSize);
			/* Data that was read by its address is valid only if a later call succeeds. */
			status = mxlFlowReaderGetGrain(reader, index, 0, &grain, &payload);
			CHECK(status != MXL_STATUS_OK || found == grain.grainSize);
		}
	}
	ended(child);
	if (!writes)
		CHECK(mxlFlowReaderGetRuntimeInfo(reader, &runtime) == MXL_ERR_FLOW_INVALID);
	OK(mxlReleaseFlowReader(instance, reader));
	OK(mxlReleaseFlowWriter(instance, writer));
	return status;
}

static mxlStatus samples(mxlInstance instance, bool writes, const char *file)
{
	mxlFlowWriter writer = NULL;
	mxlFlowReader reader = NULL;
	mxlMutableWrappedMultiBufferSlice to;
	mxlWrappedMultiBufferSlice from;
	mxlStatus status = MXL_STATUS_OK;
	uint64_t index = 480, end = mxlGetTime() + 20000000000;

	OK(mxlCreateFlowWriter(instance, audio_definition, NULL, &writer, NULL, NULL));
	OK(mxlCreateFlowReader(instance, AUDIO, NULL, &reader));
	OK(mxlFlowWriterOpenSamples(writer, index, 480, &to));
	memset(to.base.fragments[0].pointer, 1, to.base.fragments[0].size);
	OK(mxlFlowWriterCommitSamples(writer));
	pid_t child = truncates(AUDIO, file);
	while (status == MXL_STATUS_OK && mxlGetTime() < end) {
		if (writes) {
			index += 480;
			status = mxlFlowWriterOpenSamples(writer, index, 480, &to);
			if (status != MXL_STATUS_OK)
				break;
			memset(to.base.fragments[0].pointer, 1, to.base.fragments[0].size);
			status = mxlFlowWriterCommitSamples(writer);
		} else {
			status = mxlFlowReaderGetSamples(reader, index, 480, 1000000, &from);
			if (status != MXL_STATUS_OK)
				break;
			unsigned found = sum(from.base.fragments[0].pointer, from.base.fragments[0].size);
			status = mxlFlowReaderGetSamples(reader, index, 480, 0, &from);
			CHECK(status != MXL_STATUS_OK || found == from.base.fragments[0].size);
		}
	}
	ended(child);
	OK(mxlReleaseFlowReader(instance, reader));
	OK(mxlReleaseFlowWriter(instance, writer));
	return status;
}

/* What could not be published stays open: a further commit says why again, and not that nothing is open. */
static void stays_open(mxlInstance instance)
{
	mxlFlowWriter picture = NULL, sound = NULL;
	mxlMutableWrappedMultiBufferSlice to;
	mxlGrainInfo grain;
	uint8_t *payload = NULL;

	OK(mxlCreateFlowWriter(instance, video_definition, NULL, &picture, NULL, NULL));
	OK(mxlCreateFlowWriter(instance, audio_definition, NULL, &sound, NULL, NULL));
	OK(mxlFlowWriterOpenGrain(picture, 100, &grain, &payload));
	grain.validSlices = grain.totalSlices;
	OK(mxlFlowWriterOpenSamples(sound, 480, 480, &to));
	ended(truncates(VIDEO, "grains/data.0"));
	ended(truncates(AUDIO, "channels"));
	memset(payload, 1, grain.grainSize);
	memset(to.base.fragments[0].pointer, 1, to.base.fragments[0].size);
	for (int times = 0; times < 2; times++) {
		CHECK(mxlFlowWriterCommitGrain(picture, &grain) == MXL_ERR_FLOW_INVALID);
		CHECK(mxlFlowWriterCommitSamples(sound) == MXL_ERR_FLOW_INVALID);
	}
	OK(mxlFlowWriterCancelGrain(picture));
	OK(mxlFlowWriterCancelSamples(sound));
	CHECK(mxlFlowWriterCommitGrain(picture, &grain) == MXL_ERR_INVALID_ARG);
	CHECK(mxlFlowWriterCommitSamples(sound) == MXL_ERR_INVALID_ARG);
	OK(mxlReleaseFlowWriter(instance, picture));
	OK(mxlReleaseFlowWriter(instance, sound));
}

/* A SIGBUS outside the library's mappings, after the library has installed its handler. */
static void elsewhere(void)
{
	char path[512];
	int status;
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		snprintf(path, sizeof(path), "%s/foreign", domain);
		int file = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
		CHECK(file >= 0 && unlink(path) == 0);
		const volatile char *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
		CHECK(map != MAP_FAILED);
		_exit(map[0]);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	domain = argv[1];
	mxlInstance instance = mxlCreateInstance(domain, "{}");
	CHECK(instance != NULL);
	for (int writes = 0; writes < 2; writes++) {
		CHECK(grains(instance, writes, "data") == MXL_ERR_FLOW_INVALID);
		/* Of ten slots, the one of grain 100. */
		CHECK(grains(instance, writes, "grains/data.0") == MXL_ERR_FLOW_INVALID);
		CHECK(samples(instance, writes, "data") == MXL_ERR_FLOW_INVALID);
		CHECK(samples(instance, writes, "channels") == MXL_ERR_FLOW_INVALID);
	}
	stays_open(instance);
	elsewhere();
	OK(mxlDestroyInstance(instance));
	return 0;
}
