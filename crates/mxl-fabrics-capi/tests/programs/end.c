/*
 * One end of a flow, which runs until it is killed:
 *
 *   end target|initiator grains|samples PROVIDER NODE SERVICE DOMAIN INFO
 *
 * The target writes its info into the file INFO, and prints a line with the index for each correct arrival. The
 * initiator reads INFO and continues the flow where the previous one stopped. Either ends with status 1 on an error.
 */
#define _GNU_SOURCE
#include <time.h>
#include <unistd.h>

#include "common.h"

/* Samples of one commit: 10 ms. */
#define BATCH 480

static int is_grains;

static const char *flow(void)
{
	return is_grains ? VIDEO : AUDIO;
}

static const char *definition(void)
{
	return is_grains ? video_definition : audio_definition;
}

static mxlFabricsInterfaceConfig interface_of(char **argv)
{
	mxlFabricsInterfaceConfig made = {0};

	OK(mxlFabricsProviderFromString(argv[3], &made.provider));
	made.caps.flags = MXL_FABRICS_IFACE_CAP_REMOTE_WRITE | MXL_FABRICS_IFACE_CAP_BLOCKING_OPERATIONS;
	made.address.node = argv[4];
	made.address.service = argv[5];
	return made;
}

/* The value of every byte of a grain. */
static uint8_t byte_of(uint64_t index)
{
	return (uint8_t)(index * 7 + 3);
}

/* The value of a channel's sample. */
static uint32_t word_of(uint64_t index, size_t channel)
{
	return (uint32_t)(index * 3 + channel);
}

/* Whether a grain is available, valid and not overwritten meanwhile. If its content is wrong, the program ends. */
static int has_grain(mxlFlowReader reader, uint64_t index)
{
	mxlGrainInfo grain;
	uint8_t *payload;
	size_t wrong = 0;

	if (mxlFlowReaderGetGrainNonBlocking(reader, index, &grain, &payload) != MXL_STATUS_OK ||
	    (grain.flags & MXL_GRAIN_FLAG_INVALID) != 0)
		return 0;
	for (size_t byte = 0; byte < grain.grainSize; byte++)
		wrong += payload[byte] != byte_of(index);
	if (mxlFlowReaderGetGrainNonBlocking(reader, index, &grain, &payload) != MXL_STATUS_OK)
		return 0;
	CHECK(wrong == 0);
	return 1;
}

/* The same for the `count` samples before `head`. */
static int has_samples(mxlFlowReader reader, uint64_t head, size_t count)
{
	mxlWrappedMultiBufferSlice there;
	size_t wrong = 0;

	if (mxlFlowReaderGetSamplesNonBlocking(reader, head, count, &there) != MXL_STATUS_OK)
		return 0;
	for (size_t channel = 0; channel < there.count; channel++) {
		uint64_t index = head - count;

		for (int part = 0; part < 2; part++) {
			const char *piece = (const char *)there.base.fragments[part].pointer + channel * there.stride;

			for (size_t at = 0; at < there.base.fragments[part].size; at += sizeof(uint32_t), index++) {
				uint32_t word;

				memcpy(&word, piece + at, sizeof(word));
				wrong += word != word_of(index, channel);
			}
		}
		wrong += index != head;
	}
	if (mxlFlowReaderGetSamplesNonBlocking(reader, head, count, &there) != MXL_STATUS_OK)
		return 0;
	CHECK(wrong == 0);
	return 1;
}

/* Writes the info under another name first, so that the final file is always complete. */
static void publish(mxlFabricsTargetInfo info, const char *file)
{
	char text[16384], name[4096];
	size_t size = sizeof(text);
	FILE *out;

	OK(mxlFabricsTargetInfoToString(info, text, &size));
	CHECK(snprintf(name, sizeof(name), "%s.new", file) < (int)sizeof(name));
	out = fopen(name, "w");
	CHECK(out && fputs(text, out) >= 0 && fclose(out) == 0 && rename(name, file) == 0);
}

static void run_target(mxlInstance domain, mxlFabricsInstance fabrics, char **argv)
{
	mxlFabricsTargetConfig config = {0};
	mxlFabricsTargetInfo info;
	mxlFabricsTarget target;
	mxlFlowReader reader;
	uint64_t index;
	size_t count;

	OK(mxlCreateFlowWriter(domain, definition(), NULL, &config.writer, NULL, NULL));
	OK(mxlCreateFlowReader(domain, flow(), NULL, &reader));
	OK(mxlFabricsCreateTarget(fabrics, &target));
	config.interface = interface_of(argv);
	OK(mxlFabricsTargetSetup(target, &config, "{\"id\": \"4711\"}", &info));
	publish(info, argv[7]);
	for (;;) {
		mxlStatus status = is_grains ? mxlFabricsTargetReadGrain(target, 50, &index) :
					       mxlFabricsTargetReadSamples(target, 50, &index, &count);

		CHECK(status == MXL_STATUS_OK || status == MXL_ERR_NOT_READY);
		if (status == MXL_STATUS_OK && (is_grains ? has_grain(reader, index) : has_samples(reader, index, count))) {
			printf("%llu\n", (unsigned long long)index);
			fflush(stdout);
		}
	}
}

static mxlFabricsTargetInfo read_info(const char *file)
{
	char text[16384];
	mxlFabricsTargetInfo info;
	FILE *in = fopen(file, "r");

	CHECK(in);
	text[fread(text, 1, sizeof(text) - 1, in)] = 0;
	fclose(in);
	OK(mxlFabricsTargetInfoFromString(text, &info));
	return info;
}

static void send_grain(mxlFlowWriter writer, mxlFabricsInitiator initiator, uint64_t index)
{
	mxlGrainInfo grain;
	uint8_t *payload;

	OK(mxlFlowWriterOpenGrain(writer, index, &grain, &payload));
	memset(payload, byte_of(index), grain.grainSize);
	grain.validSlices = grain.totalSlices;
	OK(mxlFlowWriterCommitGrain(writer, &grain));
	OK(mxlFabricsInitiatorTransferGrain(initiator, index, 0, grain.totalSlices));
}

static void send_samples(mxlFlowWriter writer, mxlFabricsInitiator initiator, uint64_t head)
{
	mxlMutableWrappedMultiBufferSlice open;

	OK(mxlFlowWriterOpenSamples(writer, head, BATCH, &open));
	for (size_t channel = 0; channel < open.count; channel++) {
		uint64_t index = head - BATCH;

		for (int part = 0; part < 2; part++) {
			char *piece = (char *)open.base.fragments[part].pointer + channel * open.stride;

			for (size_t at = 0; at < open.base.fragments[part].size; at += sizeof(uint32_t), index++) {
				const uint32_t word = word_of(index, channel);

				memcpy(piece + at, &word, sizeof(word));
			}
		}
	}
	OK(mxlFlowWriterCommitSamples(writer));
	OK(mxlFabricsInitiatorTransferSamples(initiator, head, BATCH));
}

static void run_initiator(mxlInstance domain, mxlFabricsInstance fabrics, char **argv)
{
	static const struct timespec pause = {.tv_nsec = 2000000};
	mxlFabricsInitiatorConfig config = {0};
	mxlFabricsInitiator initiator;
	mxlFlowRuntimeInfo runtime;
	mxlFlowWriter writer;
	uint64_t at;

	OK(mxlCreateFlowWriter(domain, definition(), NULL, &writer, NULL, NULL));
	OK(mxlCreateFlowReader(domain, flow(), NULL, &config.reader));
	OK(mxlFlowReaderGetRuntimeInfo(config.reader, &runtime));
	OK(mxlFabricsCreateInitiator(fabrics, &initiator));
	config.interface = interface_of(argv);
	OK(mxlFabricsInitiatorSetup(initiator, &config, NULL));
	OK(mxlFabricsInitiatorAddTarget(initiator, read_info(argv[7])));
	at = runtime.headIndex + (is_grains ? 1 : BATCH);
	/* A new flow begins at an index such that no window reaches below 0. */
	at = runtime.headIndex == 0 ? 100 * BATCH : at;
	for (;; at += is_grains ? 1 : BATCH) {
		mxlStatus status = MXL_ERR_NOT_READY;

		if (is_grains)
			send_grain(writer, initiator, at);
		else
			send_samples(writer, initiator, at);
		/* An absent target does not stop the flow. */
		for (int turn = 0; turn < 20 && status == MXL_ERR_NOT_READY; turn++)
			status = mxlFabricsInitiatorMakeProgressBlocking(initiator, 1);
		CHECK(status == MXL_STATUS_OK || status == MXL_ERR_NOT_READY);
		nanosleep(&pause, NULL);
	}
}

int main(int argc, char **argv)
{
	mxlFabricsInstance fabrics;
	mxlInstance domain;

	CHECK(argc == 8);
	/* Ends the program even if the test does not. */
	alarm(120);
	is_grains = strcmp(argv[2], "grains") == 0;
	domain = mxlCreateInstance(argv[6], NULL);
	CHECK(domain);
	OK(mxlFabricsCreateInstance(domain, NULL, &fabrics));
	if (strcmp(argv[1], "target") == 0)
		run_target(domain, fabrics, argv);
	else
		run_initiator(domain, fabrics, argv);
	return 0;
}
