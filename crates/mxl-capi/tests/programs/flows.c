/* Calls every function of libmxl.so.1, also with wrong arguments, in the given domain. */
#include <mxl/time.h>
#include <mxl/version.h>

#include "common.h"

#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)
_Static_assert(sizeof(mxlFlowInfo) == 2048, "mxlFlowInfo");
_Static_assert(sizeof(mxlFlowConfigInfo) == 192, "mxlFlowConfigInfo");
_Static_assert(sizeof(mxlGrainInfo) == 4096, "mxlGrainInfo");
_Static_assert(sizeof(mxlWrappedMultiBufferSlice) == 48, "mxlWrappedMultiBufferSlice");
_Static_assert(sizeof(mxlVersionType) == 16, "mxlVersionType");
AT(mxlFlowInfo, config.common.format, 24);
AT(mxlFlowInfo, config.common.grainRate, 32);
AT(mxlFlowInfo, config.common.maxCommitBatchSizeHint, 48);
AT(mxlFlowInfo, config.common.deviceIndex, 60);
AT(mxlFlowInfo, config.discrete.grainCount, 152);
AT(mxlFlowInfo, config.continuous.bufferLength, 140);
AT(mxlFlowInfo, runtime.headIndex, 200);
AT(mxlGrainInfo, index, 8);
AT(mxlGrainInfo, grainSize, 20);
AT(mxlGrainInfo, validSlices, 26);

static void versions_and_time(void)
{
	mxlVersionType version;
	mxlRational rate = {30000, 1001}, none = {0, 1};

	OK(mxlGetVersion(&version));
	CHECK(version.major == MXL_VERSION_MAJOR && version.minor == MXL_VERSION_MINOR);
	CHECK(strcmp(version.full, MXL_VERSION_FULL) == 0);
	CHECK(mxlGetVersion(NULL) == MXL_ERR_INVALID_ARG);

	CHECK(mxlTimestampToIndex(&rate, 0) == 0 && mxlIndexToTimestamp(&rate, 0) == 0);
	CHECK(mxlIndexToTimestamp(&rate, 1) == 33366667);
	CHECK(mxlTimestampToIndex(NULL, 1) == MXL_UNDEFINED_INDEX && mxlIndexToTimestamp(NULL, 1) == MXL_UNDEFINED_INDEX);
	CHECK(mxlTimestampToIndex(&none, 1) == MXL_UNDEFINED_INDEX && mxlIndexToTimestamp(&none, 1) == MXL_UNDEFINED_INDEX);
	CHECK(mxlGetCurrentIndex(&none) == MXL_UNDEFINED_INDEX && mxlGetCurrentIndex(NULL) == MXL_UNDEFINED_INDEX);
	CHECK(mxlGetNsUntilIndex(1, &none) == MXL_UNDEFINED_INDEX && mxlGetNsUntilIndex(1, &rate) == 0);
	CHECK(mxlGetNsUntilIndex(mxlGetCurrentIndex(&rate) + 30000, &rate) > 900 * second);

	uint64_t before = mxlGetTime();
	mxlSleepForNs(1000000);
	mxlSleepUntil(before + 2000000);
	CHECK(mxlGetTime() >= before + 2000000);
}

static void instances(const char *domain)
{
	bool answer = false;

	CHECK(mxlCreateInstance(NULL, NULL) == NULL && mxlCreateInstance("/nowhere/at/all", "") == NULL);
	OK(mxlIsTmpFs(domain, &answer));
	CHECK(mxlIsTmpFs(NULL, &answer) == MXL_ERR_INVALID_ARG && mxlIsTmpFs(domain, NULL) == MXL_ERR_INVALID_ARG);
	CHECK(mxlIsTmpFs("/nowhere/at/all", &answer) != MXL_STATUS_OK);
	CHECK(mxlDestroyInstance(NULL) == MXL_ERR_INVALID_ARG && mxlGarbageCollectFlows(NULL) == MXL_ERR_INVALID_ARG);
}

static void grains(mxlInstance instance)
{
	mxlFlowWriter writer = NULL, same = NULL;
	mxlFlowReader reader = NULL, other = NULL;
	mxlFlowConfigInfo config;
	mxlFlowRuntimeInfo runtime;
	mxlFlowInfo info;
	mxlGrainInfo grain;
	uint8_t *payload = NULL;
	bool created = false;

	CHECK(mxlCreateFlowReader(instance, VIDEO, NULL, &reader) == MXL_ERR_FLOW_NOT_FOUND);
	CHECK(mxlCreateFlowReader(instance, "nothing", NULL, &reader) == MXL_ERR_INVALID_ARG);
	CHECK(mxlCreateFlowWriter(instance, "{", NULL, &writer, NULL, NULL) == MXL_ERR_UNKNOWN);
	CHECK(mxlCreateFlowWriter(instance, video_definition, "{\"maxSyncBatchSizeHint\": 0}", &writer, NULL, NULL) ==
	      MXL_ERR_UNKNOWN);
	CHECK(mxlCreateFlowWriter(instance, video_definition, NULL, NULL, NULL, NULL) == MXL_ERR_INVALID_ARG);
	OK(mxlCreateFlowWriter(instance, video_definition, "", &writer, &config, &created));
	CHECK(created && config.discrete.sliceSizes[0] == 256 && config.discrete.grainCount == 10);
	CHECK(config.common.format == MXL_DATA_FORMAT_VIDEO && mxlIsDiscreteDataFormat(config.common.format));
	OK(mxlCreateFlowWriter(instance, video_definition, NULL, &same, NULL, &created));
	CHECK(same == writer && !created);
	OK(mxlCreateFlowReader(instance, VIDEO, NULL, &reader));
	OK(mxlCreateFlowReader(instance, VIDEO, NULL, &other));
	CHECK(reader == other && (void *)reader != (void *)writer);

	uint64_t index = mxlGetCurrentIndex(&config.common.grainRate);
	CHECK(mxlFlowReaderGetGrain(reader, index, 1000, &grain, &payload) == MXL_ERR_OUT_OF_RANGE_TOO_EARLY);
	CHECK(mxlFlowReaderGetGrainNonBlocking(reader, index, &grain, &payload) == MXL_ERR_OUT_OF_RANGE_TOO_EARLY);
	OK(mxlFlowWriterOpenGrain(writer, index, &grain, &payload));
	CHECK(grain.index == index && grain.grainSize == 2048 && grain.totalSlices == 8 && grain.validSlices == 0);
	memset(payload, 0x5a, grain.grainSize);
	grain.validSlices = 3;
	memcpy(grain.reserved, "kept", 4);
	OK(mxlFlowWriterCommitGrain(writer, &grain));
	CHECK(mxlFlowReaderGetGrain(reader, index, 1000, &grain, &payload) == MXL_ERR_OUT_OF_RANGE_TOO_EARLY);
	OK(mxlFlowReaderGetGrainSlice(reader, index, 3, second, &grain, &payload));
	OK(mxlFlowReaderGetGrainSliceNonBlocking(reader, index, MXL_GRAIN_VALID_SLICES_ANY, &grain, &payload));
	CHECK(grain.validSlices == 3 && memcmp(grain.reserved, "kept", 4) == 0);
	grain.validSlices = grain.totalSlices;
	grain.index += 1;
	CHECK(mxlFlowWriterCommitGrain(writer, &grain) == MXL_ERR_INVALID_ARG);
	grain.index -= 1;
	OK(mxlFlowWriterCommitGrain(writer, &grain));
	CHECK(mxlFlowWriterCommitGrain(writer, &grain) == MXL_ERR_INVALID_ARG);
	OK(mxlFlowReaderGetGrain(reader, index, second, &grain, &payload));
	CHECK(grain.index == index && payload[0] == 0x5a && payload[grain.grainSize - 1] == 0x5a);
	OK(mxlFlowWriterGetGrainInfo(writer, index, &grain));
	CHECK(grain.index == index && grain.validSlices == 8);

	OK(mxlFlowWriterOpenGrain(writer, index + 1, &grain, &payload));
	OK(mxlFlowWriterCancelGrain(writer));
	CHECK(mxlFlowWriterCommitGrain(writer, &grain) == MXL_ERR_INVALID_ARG);
	OK(mxlFlowReaderGetInfo(reader, &info));
	OK(mxlFlowReaderGetConfigInfo(reader, &config));
	OK(mxlFlowReaderGetRuntimeInfo(reader, &runtime));
	CHECK(info.version == 1 && info.size == sizeof(info) && info.runtime.headIndex == index);
	CHECK(memcmp(&info.config, &config, sizeof(config)) == 0 && runtime.headIndex == index);
	CHECK(mxlFlowReaderGetGrain(reader, index - 100, 0, &grain, &payload) == MXL_ERR_OUT_OF_RANGE_TOO_LATE);

	/* Handles of another kind, and null. */
	size_t length;
	mxlMutableWrappedMultiBufferSlice slices;
	CHECK(mxlFlowReaderGetMaxReadLengthSamples(reader, &length) == MXL_ERR_INVALID_FLOW_READER);
	CHECK(mxlFlowWriterOpenSamples(writer, 0, 1, &slices) == MXL_ERR_INVALID_FLOW_WRITER);
	CHECK(mxlFlowReaderGetGrain((mxlFlowReader)writer, index, 0, &grain, &payload) == MXL_ERR_INVALID_FLOW_READER);
	CHECK(mxlFlowReaderGetGrain(NULL, index, 0, &grain, &payload) == MXL_ERR_INVALID_FLOW_READER);
	CHECK(mxlFlowReaderGetGrain(reader, index, 0, NULL, &payload) == MXL_ERR_INVALID_ARG);
	CHECK(mxlFlowWriterOpenGrain(NULL, index, &grain, &payload) == MXL_ERR_INVALID_FLOW_WRITER);
	CHECK(mxlFlowWriterCommitGrain(writer, NULL) == MXL_ERR_INVALID_ARG);

	/* The original definition. */
	char text[1024];
	size_t size = 0;
	bool active = false;
	CHECK(mxlGetFlowDef(instance, VIDEO, NULL, &size) == MXL_ERR_INVALID_ARG && size == sizeof(video_definition));
	OK(mxlGetFlowDef(instance, VIDEO, text, &size));
	CHECK(strcmp(text, video_definition) == 0);
	CHECK(mxlGetFlowDef(instance, AUDIO, text, &size) == MXL_ERR_FLOW_NOT_FOUND);
	CHECK(mxlGetFlowDef(instance, VIDEO, text, NULL) == MXL_ERR_INVALID_ARG);
	OK(mxlIsFlowActive(instance, VIDEO, &active));
	CHECK(active && mxlIsFlowActive(instance, AUDIO, &active) == MXL_ERR_FLOW_NOT_FOUND);

	/* Each is released as often as it was created; one further release fails. */
	OK(mxlReleaseFlowWriter(instance, writer));
	OK(mxlFlowWriterOpenGrain(writer, index + 1, &grain, &payload));
	OK(mxlReleaseFlowWriter(instance, same));
	CHECK(mxlReleaseFlowWriter(instance, writer) == MXL_ERR_INVALID_ARG);
	CHECK(mxlFlowReaderGetGrain(reader, index + 1, second, &grain, &payload) == MXL_ERR_FLOW_INVALID);
	/* The flow is created again: a reader of the old flow is not handed out again. */
	OK(mxlCreateFlowWriter(instance, video_definition, NULL, &writer, NULL, &created));
	CHECK(created);
	mxlFlowReader anew = NULL;
	OK(mxlCreateFlowReader(instance, VIDEO, NULL, &anew));
	CHECK(anew != reader);
	CHECK(mxlFlowReaderGetGrain(anew, index + 1, 0, &grain, &payload) == MXL_ERR_OUT_OF_RANGE_TOO_EARLY);
	OK(mxlReleaseFlowReader(instance, reader));
	OK(mxlReleaseFlowReader(instance, other));
	CHECK(mxlReleaseFlowReader(instance, other) == MXL_ERR_INVALID_ARG);
	OK(mxlReleaseFlowReader(instance, anew));
	OK(mxlReleaseFlowWriter(instance, writer));
}

static void samples(mxlInstance instance)
{
	mxlFlowWriter writer = NULL;
	mxlFlowReader reader = NULL;
	mxlFlowConfigInfo config;
	mxlMutableWrappedMultiBufferSlice to;
	mxlWrappedMultiBufferSlice from;
	size_t most = 0, readable = 0;

	OK(mxlCreateFlowWriter(instance, audio_definition, NULL, &writer, &config, NULL));
	OK(mxlCreateFlowReader(instance, AUDIO, NULL, &reader));
	OK(mxlFlowWriterGetMaxWriteLengthSamples(writer, &most));
	OK(mxlFlowReaderGetMaxReadLengthSamples(reader, &readable));
	CHECK(most == config.continuous.bufferLength / 2 && readable == most && config.continuous.channelCount == 3);

	/* Across the end of the ring. */
	uint64_t index = config.continuous.bufferLength + 10;
	CHECK(mxlFlowWriterCommitSamples(writer) == MXL_ERR_INVALID_ARG);
	CHECK(mxlFlowWriterOpenSamples(writer, index, most + 1, &to) == MXL_ERR_INVALID_ARG);
	OK(mxlFlowWriterOpenSamples(writer, index, 48, &to));
	CHECK(to.count == 3 && to.stride == config.continuous.bufferLength * sizeof(float));
	CHECK(to.base.fragments[0].size == 38 * sizeof(float) && to.base.fragments[1].size == 10 * sizeof(float));
	for (size_t channel = 0; channel < to.count; channel++) {
		float value = 0;
		for (int part = 0; part < 2; part++) {
			float *at = (float *)((char *)to.base.fragments[part].pointer + channel * to.stride);
			for (size_t i = 0; i < to.base.fragments[part].size / sizeof(float); i++)
				at[i] = value++ + 100 * channel;
		}
	}
	CHECK(mxlFlowReaderGetSamplesNonBlocking(reader, index, 48, &from) == MXL_ERR_OUT_OF_RANGE_TOO_EARLY);
	OK(mxlFlowWriterCommitSamples(writer));
	OK(mxlFlowReaderGetSamples(reader, index, 48, second, &from));
	CHECK(from.count == 3 && from.base.fragments[1].size == 10 * sizeof(float));
	const float *last = (const float *)((const char *)from.base.fragments[1].pointer + 2 * from.stride);
	CHECK(last[9] == 247);
	OK(mxlFlowReaderGetSamples(reader, index, 0, 0, &from));
	CHECK(from.base.fragments[0].size == 0 && from.base.fragments[1].size == 0);
	CHECK(mxlFlowReaderGetSamples(reader, index, readable + 1, 0, &from) == MXL_ERR_INVALID_ARG);
	OK(mxlFlowWriterOpenSamples(writer, index + 48, 48, &to));
	OK(mxlFlowWriterCancelSamples(writer));
	CHECK(mxlFlowWriterCommitSamples(writer) == MXL_ERR_INVALID_ARG);
	OK(mxlReleaseFlowReader(instance, reader));
	OK(mxlReleaseFlowWriter(instance, writer));
}

static void groups(mxlInstance instance)
{
	mxlFlowWriter picture = NULL, sound = NULL;
	mxlFlowReader seen = NULL, heard = NULL;
	mxlFlowSynchronizationGroup group = NULL;
	mxlMutableWrappedMultiBufferSlice to;
	mxlFlowConfigInfo config;
	mxlGrainInfo grain;
	uint8_t *payload;

	OK(mxlCreateFlowWriter(instance, video_definition, NULL, &picture, &config, NULL));
	OK(mxlCreateFlowWriter(instance, audio_definition, NULL, &sound, NULL, NULL));
	OK(mxlCreateFlowReader(instance, VIDEO, NULL, &seen));
	OK(mxlCreateFlowReader(instance, AUDIO, NULL, &heard));
	OK(mxlCreateFlowSynchronizationGroup(instance, &group));
	OK(mxlFlowSynchronizationGroupAddReader(group, seen));
	OK(mxlFlowSynchronizationGroupAddReader(group, heard));
	OK(mxlFlowSynchronizationGroupAddPartialGrainReader(group, seen, 4));
	CHECK(mxlFlowSynchronizationGroupAddPartialGrainReader(group, heard, 4) == MXL_ERR_INVALID_FLOW_READER);
	CHECK(mxlFlowSynchronizationGroupAddReader(group, NULL) == MXL_ERR_INVALID_FLOW_READER);
	CHECK(mxlFlowSynchronizationGroupAddReader(NULL, seen) == MXL_ERR_INVALID_ARG);

	uint64_t index = mxlGetCurrentIndex(&config.common.grainRate);
	uint64_t when = mxlIndexToTimestamp(&config.common.grainRate, index);
	mxlRational rate = {48000, 1};
	OK(mxlFlowWriterOpenGrain(picture, index, &grain, &payload));
	grain.validSlices = 4;
	OK(mxlFlowWriterCommitGrain(picture, &grain));
	CHECK(mxlFlowSynchronizationGroupWaitForDataAt(group, when, 1000) == MXL_ERR_OUT_OF_RANGE_TOO_EARLY);
	OK(mxlFlowWriterOpenSamples(sound, mxlTimestampToIndex(&rate, when) + 480, 480, &to));
	OK(mxlFlowWriterCommitSamples(sound));
	OK(mxlFlowSynchronizationGroupWaitForDataAt(group, when, second));
	CHECK(mxlFlowSynchronizationGroupWaitForDataAt(group, when + second, 1000) == MXL_ERR_OUT_OF_RANGE_TOO_EARLY);
	/* A released reader is removed from its groups. */
	OK(mxlReleaseFlowReader(instance, heard));
	OK(mxlFlowSynchronizationGroupWaitForDataAt(group, when, 0));
	OK(mxlFlowSynchronizationGroupRemoveReader(group, seen));
	OK(mxlFlowSynchronizationGroupWaitForDataAt(group, when + second, 0));
	OK(mxlReleaseFlowSynchronizationGroup(instance, group));
	CHECK(mxlReleaseFlowSynchronizationGroup(instance, group) == MXL_ERR_INVALID_ARG);
	/* The remaining objects belong to the instance. */
}

int main(int argc, char **argv)
{
	mxlInstance instance;

	CHECK(argc == 2);
	versions_and_time();
	instances(argv[1]);
	instance = mxlCreateInstance(argv[1], "{}");
	CHECK(instance != NULL);
	grains(instance);
	samples(instance);
	groups(instance);
	OK(mxlGarbageCollectFlows(instance));
	OK(mxlDestroyInstance(instance));
	return 0;
}
