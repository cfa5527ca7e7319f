/*
 * Calls every function of libmxl-fabrics.so.1, also with wrong arguments: a picture, slices of a picture and sound go
 * from the first given domain to the second, over shared memory and over IP.
 */
#include <stddef.h>
#include <time.h>

#include "common.h"

#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)
_Static_assert(sizeof(mxlFabricsInterfaceConfig) == 56, "mxlFabricsInterfaceConfig");
_Static_assert(sizeof(mxlFabricsTargetConfig) == 72, "mxlFabricsTargetConfig");
_Static_assert(sizeof(mxlFabricsInitiatorConfig) == 72, "mxlFabricsInitiatorConfig");
_Static_assert(sizeof(mxlFabricsInterfaceList) == 64, "mxlFabricsInterfaceList");
AT(mxlFabricsInterfaceConfig, caps.flags, 16);
AT(mxlFabricsInterfaceConfig, address, 32);
AT(mxlFabricsTargetConfig, writer, 64);

/* Both ends of a flow, in two domains. */
struct ends {
	mxlInstance from, to;
	mxlFabricsInstance near, far;
	mxlFlowWriter source, sink;
	mxlFlowReader reader, arrived;
	mxlFabricsTarget target;
	mxlFabricsInitiator initiator;
	mxlFabricsTargetInfo info;
};

/* How payloads travel: one of the two flags. */
static uint64_t way;
/* Both ends have progress threads. */
static int driven;

static mxlFabricsInterfaceConfig interface_of(mxlFabricsProvider provider, const char *name)
{
	mxlFabricsInterfaceConfig made = {0};

	made.provider = provider;
	made.caps.flags = way | MXL_FABRICS_IFACE_CAP_BLOCKING_OPERATIONS;
	made.caps.maxMessageSize = 2000;
	if (provider == MXL_FABRICS_PROVIDER_SHM) {
		made.address.node = name;
		made.address.service = "mxl-fabrics-test";
	} else {
		made.address.node = "127.0.0.1";
	}
	return made;
}

/* Converts an info to text and back, as on its way to an initiator. */
static mxlFabricsTargetInfo carried(mxlFabricsTargetInfo info)
{
	char text[16384], again[16384];
	size_t size = 0;
	mxlFabricsTargetInfo made;

	OK(mxlFabricsTargetInfoToString(info, NULL, &size));
	CHECK(size > 10 && size < sizeof(text));
	size--;
	CHECK(mxlFabricsTargetInfoToString(info, text, &size) == MXL_ERR_STRLEN);
	size++;
	OK(mxlFabricsTargetInfoToString(info, text, &size));
	CHECK(strlen(text) + 1 == size);
	OK(mxlFabricsTargetInfoFromString(text, &made));
	OK(mxlFabricsTargetInfoToString(made, again, &size));
	CHECK(strcmp(text, again) == 0);
	return made;
}

static void set_up(struct ends *ends, mxlFabricsProvider provider, const char *definition, const char *id)
{
	char name[64];
	mxlFabricsTargetConfig target = {0};
	mxlFabricsInitiatorConfig initiator = {0};
	mxlFabricsTargetInfo info;
	uint64_t index;
	size_t count;

	OK(mxlFabricsCreateInstance(ends->from, NULL, &ends->near));
	OK(mxlFabricsCreateInstance(ends->to, NULL, &ends->far));
	OK(mxlCreateFlowWriter(ends->from, definition, NULL, &ends->source, NULL, NULL));
	OK(mxlCreateFlowWriter(ends->to, definition, NULL, &ends->sink, NULL, NULL));
	OK(mxlCreateFlowReader(ends->from, id, NULL, &ends->reader));
	OK(mxlCreateFlowReader(ends->to, id, NULL, &ends->arrived));
	OK(mxlFabricsCreateTarget(ends->far, &ends->target));
	OK(mxlFabricsCreateInitiator(ends->near, &ends->initiator));

	/* Before its setup. */
	CHECK(mxlFabricsTargetReadGrainNonBlocking(ends->target, &index) == MXL_ERR_INVALID_STATE);
	CHECK(mxlFabricsTargetReadSamplesNonBlocking(ends->target, &index, &count) == MXL_ERR_INVALID_STATE);
	CHECK(mxlFabricsInitiatorMakeProgressNonBlocking(ends->initiator) == MXL_ERR_INVALID_STATE);

	snprintf(name, sizeof(name), "target-%ld", (long)time(NULL));
	target.interface = interface_of(provider, name);
	CHECK(mxlFabricsTargetSetup(ends->target, &target, NULL, &info) == MXL_ERR_INVALID_FLOW_WRITER);
	target.writer = (mxlFlowWriter)ends->reader;
	CHECK(mxlFabricsTargetSetup(ends->target, &target, NULL, &info) == MXL_ERR_INVALID_FLOW_WRITER);
	target.writer = ends->sink;
	target.interface.caps.flags = 0;
	CHECK(mxlFabricsTargetSetup(ends->target, &target, NULL, &info) == MXL_ERR_INVALID_ARG);
	target.interface.caps.flags = way;
	target.interface.caps.maxMessageSize = 511;
	CHECK(mxlFabricsTargetSetup(ends->target, &target, NULL, &info) == MXL_ERR_INVALID_ARG);
	target.interface.caps.maxMessageSize = 2000;
	CHECK(mxlFabricsTargetSetup(ends->target, &target, "{\"cqDepth\": 0}", &info) == MXL_ERR_INVALID_ARG);
	target.version = 1;
	CHECK(mxlFabricsTargetSetup(ends->target, &target, NULL, &info) == MXL_ERR_INVALID_ARG);
	target.version = 0;
	OK(mxlFabricsTargetSetup(ends->target, &target,
				 driven ? "{\"cqDepth\": 16, \"progressThread\": true}" : "{\"cqDepth\": 16}", &info));
	ends->info = carried(info);
	OK(mxlFabricsFreeTargetInfo(info));

	snprintf(name, sizeof(name), "initiator-%ld", (long)time(NULL));
	initiator.interface = interface_of(provider, name);
	initiator.reader = (mxlFlowReader)ends->source;
	CHECK(mxlFabricsInitiatorSetup(ends->initiator, &initiator, NULL) == MXL_ERR_INVALID_FLOW_READER);
	initiator.reader = ends->reader;
	CHECK(mxlFabricsInitiatorSetup(ends->initiator, &initiator, "{\"progressThread\": 1}") == MXL_ERR_INVALID_ARG);
	OK(mxlFabricsInitiatorSetup(ends->initiator, &initiator, driven ? "{\"progressThread\": true}" : "no JSON"));
	CHECK(mxlFabricsInitiatorMakeProgressNonBlocking(ends->initiator) ==
	      (provider == MXL_FABRICS_PROVIDER_TCP ? MXL_ERR_INTERRUPTED : MXL_STATUS_OK));
	CHECK(mxlFabricsInitiatorRemoveTarget(ends->initiator, ends->info) == MXL_ERR_NOT_FOUND);
	OK(mxlFabricsInitiatorAddTarget(ends->initiator, ends->info));
	CHECK(mxlFabricsInitiatorAddTarget(ends->initiator, ends->info) == MXL_ERR_EXISTS);
	/* Threads may have connected them by now. */
	CHECK(driven || mxlFabricsInitiatorMakeProgressNonBlocking(ends->initiator) == MXL_ERR_NOT_READY);
}

static void tear_down(struct ends *ends)
{
	OK(mxlFabricsInitiatorRemoveTarget(ends->initiator, ends->info));
	OK(mxlFabricsFreeTargetInfo(ends->info));
	OK(mxlFabricsDestroyInitiator(ends->near, ends->initiator));
	CHECK(mxlFabricsDestroyInitiator(ends->near, ends->initiator) == MXL_ERR_INVALID_ARG);
	OK(mxlReleaseFlowReader(ends->from, ends->reader));
	OK(mxlReleaseFlowReader(ends->to, ends->arrived));
	OK(mxlReleaseFlowWriter(ends->from, ends->source));
	OK(mxlReleaseFlowWriter(ends->to, ends->sink));
	/* The instance destroys its target, which is the flow's last writer. */
	OK(mxlFabricsDestroyInstance(ends->far));
	OK(mxlFabricsDestroyInstance(ends->near));
}

/* Drives both ends until a grain has arrived. */
static uint64_t grain_arrives(struct ends *ends)
{
	const time_t begin = time(NULL);
	uint64_t index = 0;

	for (;;) {
		mxlStatus status = mxlFabricsInitiatorMakeProgressNonBlocking(ends->initiator);

		CHECK(status == MXL_STATUS_OK || status == MXL_ERR_NOT_READY);
		status = mxlFabricsTargetReadGrain(ends->target, 1, &index);
		if (status == MXL_STATUS_OK)
			return index;
		CHECK(status == MXL_ERR_NOT_READY && time(NULL) - begin < 30);
	}
}

static void connects(struct ends *ends)
{
	const time_t begin = time(NULL);
	uint64_t index;
	size_t count;

	while (mxlFabricsInitiatorMakeProgressBlocking(ends->initiator, 1) != MXL_STATUS_OK) {
		/* Calls of both kinds: the wrong one fails, and the right one makes progress. */
		mxlStatus status = mxlFabricsTargetReadGrainNonBlocking(ends->target, &index);

		if (status == MXL_ERR_INVALID_STATE)
			status = mxlFabricsTargetReadSamplesNonBlocking(ends->target, &index, &count);
		CHECK(status == MXL_ERR_NOT_READY && time(NULL) - begin < 30);
	}
}

static void pictures(struct ends *ends, mxlFabricsProvider provider)
{
	mxlGrainInfo grain;
	uint8_t *payload;
	uint64_t index, at = 1000;
	size_t count, size;

	set_up(ends, provider, video_definition, VIDEO);
	connects(ends);
	CHECK(mxlFabricsTargetReadSamplesNonBlocking(ends->target, &index, &count) == MXL_ERR_INVALID_STATE);
	CHECK(mxlFabricsInitiatorTransferSamples(ends->initiator, 480, 480) == MXL_ERR_INVALID_ARG);
	for (; at < 1020; at++) {
		OK(mxlFlowWriterOpenGrain(ends->source, at, &grain, &payload));
		size = grain.grainSize;
		memset(payload, (int)at, size);
		grain.validSlices = grain.totalSlices;
		OK(mxlFlowWriterCommitGrain(ends->source, &grain));
		OK(mxlFabricsInitiatorTransferGrain(ends->initiator, at, 0, grain.totalSlices));
		/* It arrives without further calls. */
		if (driven)
			OK(mxlFlowReaderGetGrain(ends->arrived, at, 30 * second, &grain, &payload));
		CHECK(grain_arrives(ends) == at);
		OK(mxlFlowReaderGetGrain(ends->arrived, at, second, &grain, &payload));
		CHECK(grain.index == at && grain.validSlices == grain.totalSlices && grain.grainSize == size);
		for (size_t byte = 0; byte < size; byte++)
			CHECK(payload[byte] == (uint8_t)at);
		/* Programs of the C++ SDK do this; here it changes nothing. */
		OK(mxlFlowWriterOpenGrain(ends->sink, at, &grain, &payload));
		CHECK(grain.validSlices == grain.totalSlices);
		OK(mxlFlowWriterCommitGrain(ends->sink, &grain));
	}
	/* Half a picture, then the rest, of a grain that its writer has not fully committed. */
	OK(mxlFlowWriterOpenGrain(ends->source, at, &grain, &payload));
	memset(payload, 7, grain.grainSize);
	grain.validSlices = 4;
	OK(mxlFlowWriterCommitGrain(ends->source, &grain));
	CHECK(mxlFabricsInitiatorTransferGrain(ends->initiator, at, 4, 1) == MXL_ERR_INVALID_ARG);
	OK(mxlFabricsInitiatorTransferGrain(ends->initiator, at, 0, 4));
	CHECK(grain_arrives(ends) == at);
	OK(mxlFlowReaderGetGrainSlice(ends->arrived, at, 4, second, &grain, &payload));
	CHECK(grain.validSlices == 4 && payload[0] == 7);
	CHECK(mxlFlowReaderGetGrainNonBlocking(ends->arrived, at, &grain, &payload) == MXL_ERR_OUT_OF_RANGE_TOO_EARLY);
	OK(mxlFabricsInitiatorTransferGrain(ends->initiator, at, 4, 8));
	CHECK(grain_arrives(ends) == at);
	OK(mxlFlowReaderGetGrainNonBlocking(ends->arrived, at, &grain, &payload));
	CHECK(grain.validSlices == 8 && payload[grain.grainSize - 1] == 7);
	/* An invalid grain. */
	at++;
	OK(mxlFlowWriterOpenGrain(ends->source, at, &grain, &payload));
	grain.flags |= MXL_GRAIN_FLAG_INVALID;
	OK(mxlFlowWriterCommitGrain(ends->source, &grain));
	OK(mxlFabricsInitiatorTransferGrain(ends->initiator, at, 0, 0));
	CHECK(grain_arrives(ends) == at);
	OK(mxlFlowReaderGetGrainNonBlocking(ends->arrived, at, &grain, &payload));
	CHECK((grain.flags & MXL_GRAIN_FLAG_INVALID) != 0);
	/* A grain that is flagged invalid and sent anyway: its valid slices count, and the flag stays. */
	at++;
	OK(mxlFlowWriterOpenGrain(ends->source, at, &grain, &payload));
	memset(payload, 9, grain.grainSize);
	grain.flags |= MXL_GRAIN_FLAG_INVALID;
	OK(mxlFlowWriterCommitGrain(ends->source, &grain));
	OK(mxlFabricsInitiatorTransferGrain(ends->initiator, at, 0, 3));
	CHECK(grain_arrives(ends) == at);
	OK(mxlFlowReaderGetGrainNonBlocking(ends->arrived, at, &grain, &payload));
	CHECK((grain.flags & MXL_GRAIN_FLAG_INVALID) != 0 && grain.validSlices == 3 && payload[0] == 9);
	CHECK(mxlFabricsInitiatorTransferGrain(ends->initiator, at, 3, 3) == MXL_ERR_INVALID_ARG);
	CHECK(mxlFabricsInitiatorTransferGrain(ends->initiator, at, 8, 9) == MXL_ERR_INVALID_ARG);
	/* A grain that does not exist. */
	CHECK(mxlFabricsInitiatorTransferGrain(ends->initiator, at + 1, 0, 8) == MXL_ERR_OUT_OF_RANGE_TOO_EARLY);
	tear_down(ends);
}

static void sound(struct ends *ends, mxlFabricsProvider provider)
{
	mxlMutableWrappedMultiBufferSlice open;
	mxlWrappedMultiBufferSlice there;
	uint64_t index, at = 480000;
	size_t count;

	set_up(ends, provider, audio_definition, AUDIO);
	connects(ends);
	CHECK(mxlFabricsTargetReadGrainNonBlocking(ends->target, &index) == MXL_ERR_INVALID_STATE);
	CHECK(mxlFabricsInitiatorTransferGrain(ends->initiator, 0, 0, 1) == MXL_ERR_INVALID_ARG);
	CHECK(mxlFabricsInitiatorTransferSamples(ends->initiator, at, 0) == MXL_ERR_INVALID_ARG);
	CHECK(mxlFabricsInitiatorTransferSamples(ends->initiator, at, 1000000) == MXL_ERR_INVALID_ARG);
	for (int batch = 0; batch < 50; batch++, at += 480) {
		const time_t begin = time(NULL);

		OK(mxlFlowWriterOpenSamples(ends->source, at, 480, &open));
		for (size_t channel = 0; channel < open.count; channel++)
			for (int part = 0; part < 2; part++) {
				char *piece = (char *)open.base.fragments[part].pointer + channel * open.stride;

				for (size_t byte = 0; byte < open.base.fragments[part].size; byte++)
					piece[byte] = (char)(batch + 50 * (int)channel);
			}
		OK(mxlFlowWriterCommitSamples(ends->source));
		OK(mxlFabricsInitiatorTransferSamples(ends->initiator, at, 480));
		for (;;) {
			mxlStatus status = mxlFabricsInitiatorMakeProgressNonBlocking(ends->initiator);

			CHECK(status == MXL_STATUS_OK || status == MXL_ERR_NOT_READY);
			status = mxlFabricsTargetReadSamples(ends->target, 1, &index, &count);
			if (status == MXL_STATUS_OK)
				break;
			CHECK(status == MXL_ERR_NOT_READY && time(NULL) - begin < 30);
		}
		CHECK(index == at && count == 480);
		OK(mxlFlowReaderGetSamples(ends->arrived, at, 480, second, &there));
		CHECK(there.count == 3);
		for (size_t channel = 0; channel < there.count; channel++)
			for (int part = 0; part < 2; part++) {
				const char *piece = (const char *)there.base.fragments[part].pointer + channel * there.stride;

				for (size_t byte = 0; byte < there.base.fragments[part].size; byte++)
					CHECK(piece[byte] == (char)(batch + 50 * (int)channel));
			}
	}
	tear_down(ends);
}

/* Makes progress at both ends until the initiator's calls answer with this status. */
static void until_status(struct ends *ends, mxlFabricsInitiator initiator, mxlStatus wanted)
{
	const time_t begin = time(NULL);
	uint64_t index;

	while (mxlFabricsInitiatorMakeProgressBlocking(initiator, 1) != wanted) {
		mxlStatus status = mxlFabricsTargetReadGrainNonBlocking(ends->target, &index);

		CHECK(status == MXL_ERR_NOT_READY && time(NULL) - begin < 30);
	}
}

/* A second initiator takes the place of the first, which takes it back; then the target closes. */
static void farewells(struct ends *ends, mxlFabricsProvider provider)
{
	mxlFabricsInitiatorConfig config = {0};
	mxlFabricsInitiator second;
	char name[64];

	set_up(ends, provider, video_definition, VIDEO);
	connects(ends);
	OK(mxlFabricsCreateInitiator(ends->near, &second));
	snprintf(name, sizeof(name), "second-%ld", (long)time(NULL));
	config.interface = interface_of(provider, name);
	config.reader = ends->reader;
	OK(mxlFabricsInitiatorSetup(second, &config, driven ? "{\"progressThread\": true}" : NULL));
	OK(mxlFabricsInitiatorAddTarget(second, ends->info));
	until_status(ends, second, MXL_STATUS_OK);
	until_status(ends, ends->initiator, MXL_ERR_CONFLICT);
	CHECK(mxlFabricsInitiatorMakeProgressNonBlocking(ends->initiator) == MXL_ERR_CONFLICT);
	OK(mxlFabricsInitiatorAddTarget(ends->initiator, ends->info));
	until_status(ends, ends->initiator, MXL_STATUS_OK);
	until_status(ends, second, MXL_ERR_CONFLICT);
	OK(mxlFabricsDestroyInitiator(ends->near, second));
	/* Nothing is sent: the initiator learns of it by the target's farewell alone. */
	OK(mxlFabricsDestroyTarget(ends->far, ends->target));
	OK(mxlFabricsCreateTarget(ends->far, &ends->target));
	for (const time_t begin = time(NULL);;) {
		mxlStatus status = mxlFabricsInitiatorMakeProgressBlocking(ends->initiator, 1);

		if (status == MXL_ERR_NOT_READY)
			break;
		CHECK(status == MXL_STATUS_OK && time(NULL) - begin < 30);
	}
	tear_down(ends);
}

static void names(mxlInstance instance)
{
	static const char *const names[] = {"any", "tcp", "verbs", "efa", "shm", "udp"};
	mxlFabricsInstance fabrics;
	mxlFabricsInterfaceConfig query = {0};
	mxlFabricsInterfaceList *list, *entry;
	mxlFabricsProvider provider;
	mxlFabricsTargetInfo info;
	mxlFabricsTarget target;
	char text[16];
	size_t size;
	int over_tcp = 0, over_shm = 0;

	for (int number = 0; number < 6; number++) {
		OK(mxlFabricsProviderFromString(names[number], &provider));
		CHECK(provider == (mxlFabricsProvider)number);
		OK(mxlFabricsProviderToString(provider, NULL, &size));
		CHECK(size == strlen(names[number]) + 1);
		OK(mxlFabricsProviderToString(provider, text, &size));
		CHECK(strcmp(text, names[number]) == 0);
		size = 3;
		CHECK(mxlFabricsProviderToString(provider, text, &size) == MXL_ERR_STRLEN);
	}
	CHECK(mxlFabricsProviderFromString("pigeon", &provider) == MXL_ERR_INVALID_ARG);
	CHECK(mxlFabricsProviderFromString(NULL, &provider) == MXL_ERR_INVALID_ARG);
	CHECK(mxlFabricsTargetInfoFromString("{}", &info) == MXL_ERR_INVALID_ARG);
	CHECK(mxlFabricsFreeTargetInfo(NULL) == MXL_ERR_INVALID_ARG);
	CHECK(mxlFabricsCreateInstance(NULL, NULL, &fabrics) == MXL_ERR_INVALID_ARG);
	CHECK(mxlFabricsCreateInstance(instance, NULL, NULL) == MXL_ERR_INVALID_ARG);
	OK(mxlFabricsCreateInstance(instance, "", &fabrics));
	CHECK(mxlFabricsDestroyInstance((mxlFabricsInstance)instance) == MXL_ERR_INVALID_ARG);
	OK(mxlFabricsGetInterfaces(fabrics, NULL, &list));
	for (entry = list; entry; entry = entry->next) {
		over_tcp += entry->interface.provider == MXL_FABRICS_PROVIDER_TCP;
		over_shm += entry->interface.provider == MXL_FABRICS_PROVIDER_SHM;
		CHECK(entry->interface.caps.maxMessageSize > 0 && entry->interface.address.node && entry->interface.attr);
	}
	CHECK(over_tcp > 0 && over_shm == 1);
	OK(mxlFabricsFreeInterfaceList(list));
	query.provider = MXL_FABRICS_PROVIDER_TCP;
	query.address.node = "127.0.0.1";
	OK(mxlFabricsGetInterfaces(fabrics, &query, &list));
	CHECK(list && !list->next && strcmp(list->interface.address.node, "127.0.0.1") == 0);
	OK(mxlFabricsFreeInterfaceList(list));
	OK(mxlFabricsFreeInterfaceList(NULL));
	OK(mxlFabricsCreateTarget(fabrics, &target));
	OK(mxlFabricsDestroyTarget(fabrics, target));
	OK(mxlFabricsDestroyInstance(fabrics));
}

int main(int argc, char **argv)
{
	static const mxlFabricsProvider providers[] = {MXL_FABRICS_PROVIDER_SHM, MXL_FABRICS_PROVIDER_TCP,
						       MXL_FABRICS_PROVIDER_UDP};
	struct ends ends = {0};

	CHECK(argc == 3);
	ends.from = mxlCreateInstance(argv[1], NULL);
	ends.to = mxlCreateInstance(argv[2], NULL);
	CHECK(ends.from && ends.to);
	names(ends.from);
	for (size_t which = 0; which < 9; which++) {
		driven = which >= 6;
		way = which < 3 || driven ? MXL_FABRICS_IFACE_CAP_REMOTE_WRITE : MXL_FABRICS_IFACE_CAP_SEND_RECEIVE;
		pictures(&ends, providers[which % 3]);
		sound(&ends, providers[which % 3]);
		farewells(&ends, providers[which % 3]);
	}
	OK(mxlDestroyInstance(ends.from));
	OK(mxlDestroyInstance(ends.to));
	return 0;
}
