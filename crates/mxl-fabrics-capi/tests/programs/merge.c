/*
 * A merge of two paths, and a process that sends the flow by each:
 *
 *   merge NEAR FAR polled|driven
 *
 * writes a flow in the domain NEAR and merges it in the domain FAR. It starts itself as the two senders
 *
 *   merge send NEAR PROVIDER INFO
 *
 * kills either of them in turn while it writes, and finds every grain in FAR.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <mxl/ofi_merge.h>
#include <mxl/time.h>

#include "common.h"

#define CLIP "5fbec3b1-1b0f-417d-9059-8b94a47197ef"

static const char other_definition[] =
	"{\"id\": \"" CLIP "\", \"format\": \"urn:x-nmos:format:video\", \"media_type\": \"video/v210\", " TAGS ","
	"\"grain_rate\": {\"numerator\": 50}, \"frame_width\": 96, \"frame_height\": 8}";

/* Longer than any operation takes on a loaded machine. */
static const uint64_t patience = 40000000000;

static uint8_t byte_of(uint64_t index)
{
	return (uint8_t)(index * 7 + 3);
}

static void interface_of(mxlFabricsInterfaceConfig *made, const char *provider)
{
	memset(made, 0, sizeof(*made));
	OK(mxlFabricsProviderFromString(provider, &made->provider));
	made->caps.flags = MXL_FABRICS_IFACE_CAP_REMOTE_WRITE | MXL_FABRICS_IFACE_CAP_BLOCKING_OPERATIONS;
	made->address.node = strcmp(provider, "shm") == 0 ? NULL : "127.0.0.1";
}

static int run_sender(char **argv)
{
	mxlFabricsInitiatorConfig config = {0};
	mxlFabricsInitiator initiator;
	mxlFabricsInstance fabrics;
	mxlFabricsTargetInfo info;
	mxlFlowRuntimeInfo runtime;
	mxlGrainInfo grain;
	uint8_t *payload;
	char text[16384];
	mxlInstance domain = mxlCreateInstance(argv[2], NULL);
	FILE *in = fopen(argv[4], "r");

	CHECK(domain && in);
	text[fread(text, 1, sizeof(text) - 1, in)] = 0;
	OK(mxlFabricsCreateInstance(domain, NULL, &fabrics));
	OK(mxlCreateFlowReader(domain, VIDEO, NULL, &config.reader));
	OK(mxlFabricsCreateInitiator(fabrics, &initiator));
	interface_of(&config.interface, argv[3]);
	OK(mxlFabricsInitiatorSetup(initiator, &config, NULL));
	OK(mxlFabricsTargetInfoFromString(text, &info));
	OK(mxlFabricsInitiatorAddTarget(initiator, info));
	OK(mxlFlowReaderGetRuntimeInfo(config.reader, &runtime));
	for (uint64_t index = runtime.headIndex + 1;;) {
		mxlStatus status = mxlFlowReaderGetGrainNonBlocking(config.reader, index, &grain, &payload);

		if (status == MXL_ERR_FLOW_INVALID)
			return 0;
		/* It may be overwritten between the two calls. */
		if (status == MXL_STATUS_OK)
			status = mxlFabricsInitiatorTransferGrain(initiator, index, 0, grain.totalSlices);
		CHECK(status == MXL_STATUS_OK || status == MXL_ERR_OUT_OF_RANGE_TOO_LATE ||
		      status == MXL_ERR_OUT_OF_RANGE_TOO_EARLY);
		index += status != MXL_ERR_OUT_OF_RANGE_TOO_EARLY;
		status = mxlFabricsInitiatorMakeProgressBlocking(initiator, 1);
		CHECK(status == MXL_STATUS_OK || status == MXL_ERR_NOT_READY);
	}
}

struct merge {
	mxlFlowWriter source;
	mxlFlowReader merged;
	mxlFabricsTarget target;
	uint64_t index;
	/* 0: killed. */
	pid_t senders[2];
};

static ofiMxlMergeStats stats_of(const struct merge *merge)
{
	ofiMxlMergeStats stats;

	OK(ofiMxlTargetGetMergeStats(merge->target, &stats, sizeof(stats)));
	return stats;
}

static void write_next(struct merge *merge)
{
	mxlGrainInfo grain;
	uint8_t *payload;

	OK(mxlFlowWriterOpenGrain(merge->source, ++merge->index, &grain, &payload));
	memset(payload, byte_of(merge->index), grain.grainSize);
	grain.validSlices = grain.totalSlices;
	OK(mxlFlowWriterCommitGrain(merge->source, &grain));
}

/* Whether the newest grain has arrived whole. If its content is wrong, the program ends. */
static int is_there(const struct merge *merge)
{
	mxlGrainInfo grain;
	uint8_t *payload;

	if (mxlFlowReaderGetGrainNonBlocking(merge->merged, merge->index, &grain, &payload) != MXL_STATUS_OK)
		return 0;
	CHECK((grain.flags & MXL_GRAIN_FLAG_INVALID) == 0);
	for (size_t byte = 0; byte < grain.grainSize; byte++)
		CHECK(payload[byte] == byte_of(merge->index));
	return 1;
}

/* Ends the program, and says which path is missing and whether its sender runs. */
static void give_up(const struct merge *merge)
{
	ofiMxlMergeStats stats = stats_of(merge);

	fprintf(stderr, "grain %llu, paths connected %llx, published %llu, duplicates %llu, late %llu, lost %llu\n",
		(unsigned long long)merge->index, (unsigned long long)stats.connected,
		(unsigned long long)stats.published, (unsigned long long)stats.duplicates,
		(unsigned long long)stats.late, (unsigned long long)stats.lost);
	for (int path = 0; path < 2; path++) {
		pid_t sender = merge->senders[path];
		int status = 0;

		if (sender == 0)
			fprintf(stderr, "sender %d was killed\n", path);
		else if (waitpid(sender, &status, WNOHANG) == 0)
			fprintf(stderr, "sender %d runs\n", path);
		else
			fprintf(stderr, "sender %d has ended, status %x\n", path, status);
	}
	exit(1);
}

/*
 * Writes grains and polls the target until its paths have these initiators and second copies arrive. On a
 * loaded machine a process may not run for as long as the ring lasts, so the next grain waits for this one,
 * for a limited time.
 */
static void until_connected(struct merge *merge, uint64_t wanted)
{
	/* A killed sender still counts as connected until its end is noticed: only copies from now on show both. */
	ofiMxlMergeStats first = stats_of(merge);
	uint64_t end = mxlGetTime() + patience, before = first.duplicates + first.late, index;

	for (;;) {
		ofiMxlMergeStats stats = stats_of(merge);

		if (stats.connected != wanted)
			before = stats.duplicates + stats.late;
		else if (stats.duplicates + stats.late > before + 3)
			return;
		if (mxlGetTime() >= end)
			give_up(merge);
		write_next(merge);
		for (int turn = 0; turn < 40 && !is_there(merge); turn++)
			mxlFabricsTargetReadGrain(merge->target, 5, &index);
		mxlFabricsTargetReadGrain(merge->target, 5, &index);
	}
}

/* The next `count` grains arrive. */
static void all_arrive(struct merge *merge, int count)
{
	for (; count > 0; count--) {
		uint64_t end = mxlGetTime() + patience, index;

		write_next(merge);
		while (!is_there(merge)) {
			mxlStatus status = mxlFabricsTargetReadGrain(merge->target, 5, &index);

			CHECK(status == MXL_STATUS_OK || status == MXL_ERR_NOT_READY);
			if (mxlGetTime() >= end)
				give_up(merge);
		}
	}
}

static pid_t start(char **argv, const char *provider, const char *file)
{
	pid_t parent = getpid(), child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		/* A sender that outlived this process would keep the output's pipe open, and the test would not end. */
		if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
			_exit(1);
		execl("/proc/self/exe", argv[0], "send", argv[1], provider, file, (char *)NULL);
		_exit(1);
	}
	return child;
}

static void stop(pid_t *sender)
{
	pid_t child = *sender;
	int status;

	*sender = 0;
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
	/* The sender had not ended by an error before. */
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void publish(mxlFabricsTargetInfo info, const char *file)
{
	char text[16384];
	size_t size = sizeof(text);
	FILE *out = fopen(file, "w");

	OK(mxlFabricsTargetInfoToString(info, text, &size));
	CHECK(out && fputs(text, out) >= 0 && fclose(out) == 0);
	OK(mxlFabricsFreeTargetInfo(info));
}

/* Calls that are refused, on a target without a setup. */
static void refusals(mxlInstance domain, mxlFabricsTarget target, const mxlFabricsTargetConfig *good)
{
	mxlFabricsTargetInfo infos[9];
	mxlFabricsTargetConfig bad[2] = {good[0], good[1]}, many[9];
	ofiMxlMergeStats stats;

	CHECK(ofiMxlTargetSetupMerge(NULL, good, 2, NULL, infos) == MXL_ERR_INVALID_ARG);
	CHECK(ofiMxlTargetSetupMerge(target, NULL, 2, NULL, infos) == MXL_ERR_INVALID_ARG);
	CHECK(ofiMxlTargetSetupMerge(target, good, 2, NULL, NULL) == MXL_ERR_INVALID_ARG);
	CHECK(ofiMxlTargetSetupMerge(target, good, 1, NULL, infos) == MXL_ERR_INVALID_ARG);
	for (int path = 0; path < 9; path++)
		many[path] = good[0];
	CHECK(ofiMxlTargetSetupMerge(target, many, 9, NULL, infos) == MXL_ERR_INVALID_ARG);
	CHECK(ofiMxlTargetSetupMerge(target, many, (size_t)-1, NULL, infos) == MXL_ERR_INVALID_ARG);
	CHECK(ofiMxlTargetSetupMerge(target, good, 2, "{\"ids\": [\"1\"]}", infos) == MXL_ERR_INVALID_ARG);
	CHECK(ofiMxlTargetSetupMerge(target, good, 2, "{\"ids\": [1, 2]}", infos) == MXL_ERR_INVALID_ARG);
	CHECK(ofiMxlTargetSetupMerge(target, good, 2, "{\"id\": \"1\"}", infos) == MXL_ERR_INVALID_ARG);
	OK(mxlCreateFlowWriter(domain, other_definition, NULL, &bad[1].writer, NULL, NULL));
	CHECK(ofiMxlTargetSetupMerge(target, bad, 2, NULL, infos) == MXL_ERR_INVALID_ARG);
	OK(mxlReleaseFlowWriter(domain, bad[1].writer));
	bad[0].writer = NULL;
	CHECK(ofiMxlTargetSetupMerge(target, bad, 2, NULL, infos) == MXL_ERR_INVALID_FLOW_WRITER);
	CHECK(ofiMxlTargetGetMergeStats(target, &stats, sizeof(stats)) == MXL_ERR_INVALID_STATE);
	/* A target of one path is not a merge. */
	OK(mxlFabricsTargetSetup(target, good, NULL, infos));
	OK(mxlFabricsFreeTargetInfo(infos[0]));
	CHECK(ofiMxlTargetGetMergeStats(target, &stats, sizeof(stats)) == MXL_ERR_INVALID_STATE);
}

static void run_merge(char **argv)
{
	static const char *const providers[2] = {"shm", "tcp"};
	const char *options = strcmp(argv[3], "driven") == 0 ? "{\"progressThread\": true, \"ids\": [\"7\", \"8\"]}" : NULL;
	mxlInstance near = mxlCreateInstance(argv[1], NULL), far = mxlCreateInstance(argv[2], NULL);
	mxlFabricsTargetConfig configs[2] = {0};
	mxlFabricsTargetInfo infos[2];
	mxlFabricsInstance fabrics;
	mxlFlowWriter merged;
	char files[2][512];
	struct merge merge = {.index = 1000};
	uint64_t word = 0, few = 0;
	size_t count;

	CHECK(near && far && ofiMxlMergeVersion() >= OFI_MXL_MERGE_VERSION);
	OK(mxlCreateFlowWriter(near, video_definition, NULL, &merge.source, NULL, NULL));
	OK(mxlCreateFlowWriter(far, video_definition, NULL, &merged, NULL, NULL));
	OK(mxlCreateFlowReader(far, VIDEO, NULL, &merge.merged));
	OK(mxlFabricsCreateInstance(far, NULL, &fabrics));
	OK(mxlFabricsCreateTarget(fabrics, &merge.target));
	for (int path = 0; path < 2; path++) {
		interface_of(&configs[path].interface, providers[path]);
		configs[path].writer = merged;
	}
	refusals(far, merge.target, configs);
	OK(ofiMxlTargetSetupMerge(merge.target, configs, 2, options, infos));
	CHECK(mxlFabricsTargetReadSamplesNonBlocking(merge.target, &word, &count) == MXL_ERR_INVALID_STATE);
	/* A program of an earlier version has room for less. */
	OK(ofiMxlTargetGetMergeStats(merge.target, (ofiMxlMergeStats *)&few, sizeof(few)));
	CHECK(few == 0 && ofiMxlTargetGetMergeStats(merge.target, NULL, 8) == MXL_ERR_INVALID_ARG);
	for (int path = 0; path < 2; path++) {
		CHECK(snprintf(files[path], sizeof(files[path]), "%s/path-%d.json", argv[1], path) > 0);
		publish(infos[path], files[path]);
		merge.senders[path] = start(argv, providers[path], files[path]);
	}
	until_connected(&merge, 3);
	for (int path = 0; path < 2; path++) {
		all_arrive(&merge, 20);
		uint64_t lost = stats_of(&merge).lost;
		all_arrive(&merge, 20);
		write_next(&merge);
		/* Its copy of this grain may be complete, partial, or missing. */
		stop(&merge.senders[path]);
		all_arrive(&merge, 60);
		CHECK(stats_of(&merge).lost == lost);
		/* The sender restarts, at another address. */
		merge.senders[path] = start(argv, providers[path], files[path]);
		until_connected(&merge, 3);
	}
	stop(&merge.senders[0]);
	stop(&merge.senders[1]);
	CHECK(stats_of(&merge).published > 200 && stats_of(&merge).invalid == 0);
	OK(mxlFabricsDestroyTarget(fabrics, merge.target));
	OK(mxlFabricsDestroyInstance(fabrics));
	OK(mxlDestroyInstance(near));
	OK(mxlDestroyInstance(far));
}

int main(int argc, char **argv)
{
	/* Ends the program even if the test does not. */
	alarm(120);
	if (argc == 5 && strcmp(argv[1], "send") == 0)
		return run_sender(argv);
	CHECK(argc == 4);
	run_merge(argv);
	return 0;
}
