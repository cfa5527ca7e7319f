/*
 * Truncates a file of a flow that this program has mapped twice: by libmxl.so.1 and by libmxl-fabrics.so.1.
 * Each library handles SIGBUS for its own mappings, and passes other signals on.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

int main(int argc, char **argv)
{
	mxlFabricsInitiatorConfig config = {.interface.provider = MXL_FABRICS_PROVIDER_SHM};
	mxlFabricsInitiator initiator;
	mxlFabricsInstance fabrics;
	mxlFlowWriter writer;
	mxlGrainInfo grain;
	uint8_t *payload;
	char path[512];
	int status;

	CHECK(argc == 2);
	mxlInstance domain = mxlCreateInstance(argv[1], NULL);
	CHECK(domain);
	OK(mxlCreateFlowWriter(domain, video_definition, NULL, &writer, NULL, NULL));
	OK(mxlCreateFlowReader(domain, VIDEO, NULL, &config.reader));
	OK(mxlFabricsCreateInstance(domain, NULL, &fabrics));
	OK(mxlFabricsCreateInitiator(fabrics, &initiator));
	config.interface.caps.flags = MXL_FABRICS_IFACE_CAP_REMOTE_WRITE;
	OK(mxlFabricsInitiatorSetup(initiator, &config, NULL));
	OK(mxlFlowWriterOpenGrain(writer, 100, &grain, &payload));
	grain.validSlices = grain.totalSlices;
	OK(mxlFlowWriterCommitGrain(writer, &grain));
	OK(mxlFlowReaderGetGrain(config.reader, 100, second, &grain, &payload));
	OK(mxlFabricsInitiatorTransferGrain(initiator, 100, 0, grain.totalSlices));

	/* Of ten slots, the one of grain 100. */
	snprintf(path, sizeof(path), "%s/" VIDEO ".mxl-flow/grains/data.0", argv[1]);
	CHECK(truncate(path, 0) == 0);
	CHECK(mxlFlowReaderGetGrain(config.reader, 100, second, &grain, &payload) == MXL_ERR_FLOW_INVALID);
	CHECK(mxlFabricsInitiatorTransferGrain(initiator, 100, 0, grain.totalSlices) == MXL_ERR_FLOW_INVALID);
	/* The writer has a mapping of its own. */
	CHECK(mxlFlowWriterOpenGrain(writer, 110, &grain, &payload) == MXL_ERR_FLOW_INVALID);

	/* A SIGBUS that belongs to neither library ends the process. */
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		FILE *file = tmpfile();
		CHECK(file);
		const volatile char *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fileno(file), 0);
		CHECK(map != MAP_FAILED);
		_exit(map[0]);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
	OK(mxlFabricsDestroyInstance(fabrics));
	OK(mxlDestroyInstance(domain));
	return 0;
}
