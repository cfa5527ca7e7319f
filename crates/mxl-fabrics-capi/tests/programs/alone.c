/*
 * One thread that drives both ends of a flow with calls that wait: each call returns when it is done, not when its
 * timeout expires. Then targets are removed: the calls answer as those of the C++ SDK. Takes two domains.
 */
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <mxl/ofi_protocol.h>

#include "common.h"

/* Much longer than any transfer takes on a loaded machine. */
#define LONG_MS 30000

static int has_connections(mxlFabricsProvider provider)
{
	return provider == MXL_FABRICS_PROVIDER_TCP;
}

static mxlFabricsInterfaceConfig interface_of(mxlFabricsProvider provider, uint64_t way, const char *who)
{
	static char name[64];
	mxlFabricsInterfaceConfig made = {0};

	made.provider = provider;
	made.caps.flags = way | MXL_FABRICS_IFACE_CAP_BLOCKING_OPERATIONS;
	made.address.node = "127.0.0.1";
	if (provider == MXL_FABRICS_PROVIDER_SHM) {
		snprintf(name, sizeof(name), "alone-%s-%ld", who, (long)time(NULL));
		made.address.node = name;
		made.address.service = "mxl-fabrics-test";
	}
	return made;
}

static void send_grain(mxlFlowWriter source, mxlFabricsInitiator initiator, uint64_t at)
{
	mxlGrainInfo grain;
	uint8_t *payload;

	OK(mxlFlowWriterOpenGrain(source, at, &grain, &payload));
	memset(payload, (int)at, grain.grainSize);
	grain.validSlices = grain.totalSlices;
	OK(mxlFlowWriterCommitGrain(source, &grain));
	OK(mxlFabricsInitiatorTransferGrain(initiator, at, 0, grain.totalSlices));
}

static mxlStatus progress(mxlFabricsInitiator initiator, int blocking)
{
	return blocking ? mxlFabricsInitiatorMakeProgressBlocking(initiator, LONG_MS)
			: mxlFabricsInitiatorMakeProgressNonBlocking(initiator);
}

/* What progress answers without a target, and in the call after a removal. */
static void removals(mxlFabricsInitiator initiator, mxlFabricsTargetInfo info, mxlFabricsProvider provider,
		     int blocking)
{
	const mxlStatus none = has_connections(provider) ? MXL_ERR_INTERRUPTED : MXL_STATUS_OK;
	const mxlStatus twice = has_connections(provider) ? MXL_STATUS_OK : MXL_ERR_NOT_FOUND;

	CHECK(progress(initiator, blocking) == none);
	CHECK(mxlFabricsInitiatorRemoveTarget(initiator, info) == MXL_ERR_NOT_FOUND);
	/* Before it is connected. */
	OK(mxlFabricsInitiatorAddTarget(initiator, info));
	OK(mxlFabricsInitiatorRemoveTarget(initiator, info));
	CHECK(mxlFabricsInitiatorRemoveTarget(initiator, info) == twice);
	OK(progress(initiator, blocking));
	CHECK(progress(initiator, blocking) == none);
	CHECK(mxlFabricsInitiatorRemoveTarget(initiator, info) == MXL_ERR_NOT_FOUND);
	/* After that. */
	OK(mxlFabricsInitiatorAddTarget(initiator, info));
	OK(progress(initiator, 1));
	OK(mxlFabricsInitiatorRemoveTarget(initiator, info));
	OK(progress(initiator, blocking));
	CHECK(progress(initiator, blocking) == none);
	CHECK(progress(initiator, blocking) == none);
	CHECK(mxlFabricsInitiatorRemoveTarget(initiator, info) == MXL_ERR_NOT_FOUND);
	/* A target that was added again is one that is there. */
	OK(mxlFabricsInitiatorAddTarget(initiator, info));
	OK(mxlFabricsInitiatorRemoveTarget(initiator, info));
	OK(mxlFabricsInitiatorAddTarget(initiator, info));
	OK(progress(initiator, 1));
	OK(mxlFabricsInitiatorRemoveTarget(initiator, info));
	OK(progress(initiator, blocking));
}

static void alone(mxlInstance from, mxlInstance to, mxlFabricsProvider provider, uint64_t way)
{
	mxlFabricsTargetConfig there = {0};
	mxlFabricsInitiatorConfig here = {0};
	mxlFabricsInstance fabrics;
	mxlFabricsInitiator initiator;
	mxlFabricsTarget target;
	mxlFabricsTargetInfo info;
	mxlFlowWriter source, sink;
	mxlFlowReader reader;
	uint64_t index, at = 1000;
	int protocol = -1, status;
	pid_t child;

	OK(mxlFabricsCreateInstance(from, NULL, &fabrics));
	OK(mxlCreateFlowWriter(from, video_definition, NULL, &source, NULL, NULL));
	OK(mxlCreateFlowWriter(to, video_definition, NULL, &sink, NULL, NULL));
	OK(mxlCreateFlowReader(from, VIDEO, NULL, &reader));
	OK(mxlFabricsCreateTarget(fabrics, &target));
	OK(mxlFabricsCreateInitiator(fabrics, &initiator));
	there.interface = interface_of(provider, way, "target");
	there.writer = sink;
	OK(mxlFabricsTargetSetup(target, &there, NULL, &info));
	here.interface = interface_of(provider, way, "initiator");
	here.reader = reader;
	OK(mxlFabricsInitiatorSetup(initiator, &here, NULL));

	OK(mxlFabricsInitiatorAddTarget(initiator, info));
	/* It connects, although nothing else drives the target. */
	OK(mxlFabricsInitiatorMakeProgressBlocking(initiator, LONG_MS));
	OK(ofiMxlInitiatorGetProtocol(initiator, info, &protocol));
	CHECK(protocol == OFI_MXL_PROTOCOL_OWN);
	OK(ofiMxlTargetGetProtocol(target, &protocol));
	CHECK(protocol == OFI_MXL_PROTOCOL_OWN);
	CHECK(ofiMxlTargetGetProtocol(target, NULL) == MXL_ERR_INVALID_ARG);
	for (; at < 1010; at++) {
		send_grain(source, initiator, at);
		OK(mxlFabricsInitiatorMakeProgressBlocking(initiator, LONG_MS));
		OK(mxlFabricsTargetReadGrain(target, LONG_MS, &index));
		CHECK(index == at);
	}
	/* A child releases its copies: those of its parent stay, and the flows. */
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		alarm(20);
		OK(mxlFabricsDestroyInitiator(fabrics, initiator));
		if (way == MXL_FABRICS_IFACE_CAP_REMOTE_WRITE)
			OK(mxlFabricsDestroyTarget(fabrics, target));
		OK(mxlFabricsDestroyInstance(fabrics));
		OK(mxlReleaseFlowWriter(from, source));
		OK(mxlReleaseFlowWriter(to, sink));
		OK(mxlDestroyInstance(from));
		OK(mxlDestroyInstance(to));
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	/* The target's calls drive the initiator as well. */
	for (; at < 1020; at++) {
		send_grain(source, initiator, at);
		OK(mxlFabricsTargetReadGrain(target, LONG_MS, &index));
		CHECK(index == at);
	}
	/* A call that cannot succeed waits for its time. */
	CHECK(mxlFabricsTargetReadGrain(target, 20, &index) == MXL_ERR_NOT_READY);
	OK(mxlFabricsInitiatorRemoveTarget(initiator, info));
	OK(ofiMxlInitiatorGetProtocol(initiator, info, &protocol));
	CHECK(protocol == OFI_MXL_PROTOCOL_NONE);
	OK(mxlFabricsInitiatorMakeProgressNonBlocking(initiator));
	removals(initiator, info, provider, 0);
	removals(initiator, info, provider, 1);

	/* Without its target it waits in vain, and neither call touches what is gone. */
	OK(mxlFabricsInitiatorAddTarget(initiator, info));
	OK(mxlFabricsDestroyTarget(fabrics, target));
	CHECK(mxlFabricsInitiatorMakeProgressBlocking(initiator, 20) == MXL_ERR_NOT_READY);
	OK(mxlFabricsDestroyInitiator(fabrics, initiator));
	OK(mxlFabricsFreeTargetInfo(info));
	OK(mxlFabricsDestroyInstance(fabrics));
	OK(mxlReleaseFlowReader(from, reader));
	OK(mxlReleaseFlowWriter(from, source));
	OK(mxlReleaseFlowWriter(to, sink));
}

int main(int argc, char **argv)
{
	static const mxlFabricsProvider providers[] = {MXL_FABRICS_PROVIDER_SHM, MXL_FABRICS_PROVIDER_TCP,
						       MXL_FABRICS_PROVIDER_UDP};
	mxlInstance from, to;

	CHECK(argc == 3);
	from = mxlCreateInstance(argv[1], NULL);
	to = mxlCreateInstance(argv[2], NULL);
	CHECK(from && to);
	for (size_t which = 0; which < 3; which++) {
		alone(from, to, providers[which], MXL_FABRICS_IFACE_CAP_REMOTE_WRITE);
		alone(from, to, providers[which], MXL_FABRICS_IFACE_CAP_SEND_RECEIVE);
	}
	OK(mxlDestroyInstance(from));
	OK(mxlDestroyInstance(to));
	return 0;
}
