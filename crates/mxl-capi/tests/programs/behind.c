/* Readers that stop for a while and go on as GStreamer's `mxlsrc` does: behind the ring they resume at the oldest index,
 * which they compute from the head and the number of grains. Arguments: the domain; "at-once" for a writer that opens and
 * commits a grain in one go, or "open" for one that keeps the next grain open until it is due. */
#include <pthread.h>
#include <stdatomic.h>

#include <mxl/time.h>

#include "common.h"

static atomic_bool ended;
static const char *domain, *kind;

/* Every byte of a picture is the low byte of its index. */
static void *write_pictures(void *unused)
{
	mxlInstance instance = mxlCreateInstance(domain, NULL);
	mxlFlowWriter writer = NULL;
	mxlGrainInfo grain;
	uint8_t *payload = NULL;
	mxlRational rate = {50, 1};

	(void)unused;
	CHECK(instance != NULL);
	OK(mxlCreateFlowWriter(instance, video_definition, NULL, &writer, NULL, NULL));
	for (uint64_t index = mxlGetCurrentIndex(&rate); !atomic_load(&ended); index++) {
		if (strcmp(kind, "at-once") == 0)
			mxlSleepForNs(mxlGetNsUntilIndex(index, &rate));
		OK(mxlFlowWriterOpenGrain(writer, index, &grain, &payload));
		memset(payload, (int)(index & 0xff), grain.grainSize);
		if (strcmp(kind, "open") == 0)
			mxlSleepForNs(mxlGetNsUntilIndex(index, &rate));
		grain.validSlices = grain.totalSlices;
		OK(mxlFlowWriterCommitGrain(writer, &grain));
	}
	OK(mxlReleaseFlowWriter(instance, writer));
	OK(mxlDestroyInstance(instance));
	return NULL;
}

struct stop {
	mxlFlowReader reader;
	uint64_t length;
};

/* The next picture, or false: try again. */
static bool next(mxlFlowReader reader, uint64_t *index, uint32_t grains)
{
	mxlFlowRuntimeInfo runtime;
	mxlGrainInfo grain;
	uint8_t *payload = NULL, copy[2048];

	OK(mxlFlowReaderGetRuntimeInfo(reader, &runtime));
	if (runtime.headIndex == 0)
		return false; /* nothing was written yet */
	uint64_t oldest = runtime.headIndex - (grains - 1);
	if (*index == 0)
		*index = runtime.headIndex;
	if (*index > runtime.headIndex)
		return false;
	if (*index < oldest)
		*index = oldest;
	if (mxlFlowReaderGetGrain(reader, *index, 5 * second, &grain, &payload) != MXL_STATUS_OK)
		return false;
	CHECK(grain.index >= *index);
	memcpy(copy, payload, sizeof(copy));
	/* If even now the writer has not come to its slot, the picture is whole. */
	OK(mxlFlowReaderGetRuntimeInfo(reader, &runtime));
	if (runtime.headIndex + 1 < grain.index + grains)
		CHECK(copy[0] == (grain.index & 0xff) && copy[sizeof(copy) - 1] == copy[0]);
	*index = grain.index + 1;
	return true;
}

static void *read_with_a_stop(void *argument)
{
	struct stop *stop = argument;
	mxlFlowConfigInfo config;
	uint64_t index = 0;
	int seen = 0;

	OK(mxlFlowReaderGetConfigInfo(stop->reader, &config));
	while (seen < 20)
		next(stop->reader, &index, config.discrete.grainCount) ? (void)seen++ : mxlSleepForNs(1000000);
	mxlSleepForNs(stop->length);
	uint64_t from = mxlGetTime();
	while (!next(stop->reader, &index, config.discrete.grainCount)) {
		CHECK(mxlGetTime() - from < second / 5);
		mxlSleepForNs(1000000);
	}
	/* And it keeps up: a second's pictures take no longer than a second and a bit. */
	for (seen = 0; seen < 50; next(stop->reader, &index, config.discrete.grainCount) ? (void)seen++ : mxlSleepForNs(1000000))
		CHECK(mxlGetTime() - from < 2 * second);
	return NULL;
}

int main(int count, char **arguments)
{
	CHECK(count == 3);
	domain = arguments[1];
	kind = arguments[2];
	struct stop stops[3] = {{NULL, 3 * second / 10}, {NULL, 3 * second / 2}, {NULL, 10 * second}};
	pthread_t writer, readers[3];
	mxlInstance instance = mxlCreateInstance(domain, NULL);

	CHECK(instance != NULL);
	CHECK(pthread_create(&writer, NULL, write_pictures, NULL) == 0);
	for (int i = 0; i < 3; i++) {
		while (mxlCreateFlowReader(instance, VIDEO, NULL, &stops[i].reader) != MXL_STATUS_OK)
			mxlSleepForNs(1000000);
		CHECK(pthread_create(&readers[i], NULL, read_with_a_stop, &stops[i]) == 0);
	}
	for (int i = 0; i < 3; i++) {
		CHECK(pthread_join(readers[i], NULL) == 0);
		OK(mxlReleaseFlowReader(instance, stops[i].reader));
	}
	atomic_store(&ended, true);
	CHECK(pthread_join(writer, NULL) == 0);
	OK(mxlDestroyInstance(instance));
	return 0;
}
