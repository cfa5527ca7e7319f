/*
 * Flows: rings of grains or of samples in shared memory.
 *
 * Only one thread may use a reader or a writer at a time. An instance hands out one object for each flow, and
 * counts references: release each object as often as it was created.
 */
#ifndef MXL_FLOW_H
#define MXL_FLOW_H

#include <mxl/flowinfo.h>
#include <mxl/mxl.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The payload is invalid, and readers need not wait for more of it. */
#define MXL_GRAIN_FLAG_INVALID 0x00000001

/* Slices that a reader may request: as many as are valid, or all. */
#define MXL_GRAIN_VALID_SLICES_ANY ((uint16_t)0)
#define MXL_GRAIN_VALID_SLICES_ALL ((uint16_t)UINT16_MAX)

typedef struct mxlBufferSlice_t {
	void const *pointer;
	/* In bytes. */
	size_t size;
} mxlBufferSlice;

typedef struct mxlMutableBufferSlice_t {
	void *pointer;
	size_t size;
} mxlMutableBufferSlice;

/* A part of a ring: up to its end, and the rest from its start. */
typedef struct mxlWrappedBufferSlice_t {
	mxlBufferSlice fragments[2];
} mxlWrappedBufferSlice;

typedef struct mxlMutableWrappedBufferSlice_t {
	mxlMutableBufferSlice fragments[2];
} mxlMutableWrappedBufferSlice;

/* The same part of `count` rings: `base` is that of the first ring, and the others follow every `stride` bytes. */
typedef struct mxlWrappedMultiBufferSlice_t {
	mxlWrappedBufferSlice base;
	size_t stride;
	size_t count;
} mxlWrappedMultiBufferSlice;

typedef struct mxlMutableWrappedMultiBufferSlice_t {
	mxlMutableWrappedBufferSlice base;
	size_t stride;
	size_t count;
} mxlMutableWrappedMultiBufferSlice;

/* The first half of a grain's header. */
typedef struct mxlGrainInfo_t {
	/* 1. */
	uint32_t version;
	/* Bytes of this structure. */
	uint32_t size;
	uint64_t index;
	uint32_t flags;
	/* Bytes of the payload. */
	uint32_t grainSize;
	uint16_t totalSlices;
	uint16_t validSlices;
	uint8_t reserved[4068];
} mxlGrainInfo;

typedef struct mxlFlowReader_t *mxlFlowReader;
typedef struct mxlFlowWriter_t *mxlFlowWriter;
typedef struct mxlFlowSynchronizationGroup_t *mxlFlowSynchronizationGroup;

/*
 * Creates a flow, or opens the one with that id. `flowDef` is an NMOS flow definition. `options` may be null, or JSON
 * with "maxCommitBatchSizeHint" and "maxSyncBatchSizeHint". `configInfo` and `created` may be null.
 */
MXL_EXPORT
mxlStatus mxlCreateFlowWriter(mxlInstance instance, char const *flowDef, char const *options, mxlFlowWriter *writer,
			      mxlFlowConfigInfo *configInfo, bool *created);

/* The last writer of a flow, in all processes, deletes it. */
MXL_EXPORT
mxlStatus mxlReleaseFlowWriter(mxlInstance instance, mxlFlowWriter writer);

MXL_EXPORT
mxlStatus mxlCreateFlowReader(mxlInstance instance, char const *flowId, char const *options, mxlFlowReader *reader);

MXL_EXPORT
mxlStatus mxlReleaseFlowReader(mxlInstance instance, mxlFlowReader reader);

/* Whether a process has the flow open for writing. */
MXL_EXPORT
mxlStatus mxlIsFlowActive(mxlInstance instance, char const *flowId, bool *isActive);

/* The flow's definition, as its creator gave it. `bufferSize` is the buffer's size, and returns the needed size. */
MXL_EXPORT
mxlStatus mxlGetFlowDef(mxlInstance instance, char const *flowId, char *buffer, size_t *bufferSize);

MXL_EXPORT
mxlStatus mxlFlowReaderGetInfo(mxlFlowReader reader, mxlFlowInfo *info);

MXL_EXPORT
mxlStatus mxlFlowReaderGetConfigInfo(mxlFlowReader reader, mxlFlowConfigInfo *info);

MXL_EXPORT
mxlStatus mxlFlowReaderGetRuntimeInfo(mxlFlowReader reader, mxlFlowRuntimeInfo *info);

/*
 * A whole grain, or one with some valid slices. The payload lies in shared memory: a writer may overwrite it one lap of
 * the ring later.
 */
MXL_EXPORT
mxlStatus mxlFlowReaderGetGrain(mxlFlowReader reader, uint64_t index, uint64_t timeoutNs, mxlGrainInfo *grain,
				uint8_t **payload);

MXL_EXPORT
mxlStatus mxlFlowReaderGetGrainSlice(mxlFlowReader reader, uint64_t index, uint16_t minValidSlices, uint64_t timeoutNs,
				     mxlGrainInfo *grain, uint8_t **payload);

MXL_EXPORT
mxlStatus mxlFlowReaderGetGrainNonBlocking(mxlFlowReader reader, uint64_t index, mxlGrainInfo *grain,
					   uint8_t **payload);

MXL_EXPORT
mxlStatus mxlFlowReaderGetGrainSliceNonBlocking(mxlFlowReader reader, uint64_t index, uint16_t minValidSlices,
						mxlGrainInfo *grain, uint8_t **payload);

/* The current state of a grain's slot; it may hold another grain. */
MXL_EXPORT
mxlStatus mxlFlowWriterGetGrainInfo(mxlFlowWriter writer, uint64_t index, mxlGrainInfo *grain);

/* A writer has at most one open grain. */
MXL_EXPORT
mxlStatus mxlFlowWriterOpenGrain(mxlFlowWriter writer, uint64_t index, mxlGrainInfo *grain, uint8_t **payload);

MXL_EXPORT
mxlStatus mxlFlowWriterCancelGrain(mxlFlowWriter writer);

/* Publishes `validSlices` of the open grain; publishing all of them closes it. */
MXL_EXPORT
mxlStatus mxlFlowWriterCommitGrain(mxlFlowWriter writer, mxlGrainInfo const *grain);

/* Most samples of one read. */
MXL_EXPORT
mxlStatus mxlFlowReaderGetMaxReadLengthSamples(mxlFlowReader reader, size_t *maxReadLength);

/* The `count` samples before `index`, of every channel. */
MXL_EXPORT
mxlStatus mxlFlowReaderGetSamples(mxlFlowReader reader, uint64_t index, size_t count, uint64_t timeoutNs,
				  mxlWrappedMultiBufferSlice *payloadBuffersSlices);

MXL_EXPORT
mxlStatus mxlFlowReaderGetSamplesNonBlocking(mxlFlowReader reader, uint64_t index, size_t count,
					     mxlWrappedMultiBufferSlice *payloadBuffersSlices);

/* Most samples of one commit. */
MXL_EXPORT
mxlStatus mxlFlowWriterGetMaxWriteLengthSamples(mxlFlowWriter writer, size_t *maxWriteLength);

MXL_EXPORT
mxlStatus mxlFlowWriterOpenSamples(mxlFlowWriter writer, uint64_t index, size_t count,
				   mxlMutableWrappedMultiBufferSlice *payloadBuffersSlices);

MXL_EXPORT
mxlStatus mxlFlowWriterCancelSamples(mxlFlowWriter writer);

MXL_EXPORT
mxlStatus mxlFlowWriterCommitSamples(mxlFlowWriter writer);

/* Readers that wait together for the data of one point in time. */
MXL_EXPORT
mxlStatus mxlCreateFlowSynchronizationGroup(mxlInstance instance, mxlFlowSynchronizationGroup *group);

MXL_EXPORT
mxlStatus mxlReleaseFlowSynchronizationGroup(mxlInstance instance, mxlFlowSynchronizationGroup group);

MXL_EXPORT
mxlStatus mxlFlowSynchronizationGroupAddReader(mxlFlowSynchronizationGroup group, mxlFlowReader reader);

MXL_EXPORT
mxlStatus mxlFlowSynchronizationGroupAddPartialGrainReader(mxlFlowSynchronizationGroup group, mxlFlowReader reader,
							   uint16_t minValidSlices);

MXL_EXPORT
mxlStatus mxlFlowSynchronizationGroupRemoveReader(mxlFlowSynchronizationGroup group, mxlFlowReader reader);

/* `timestamp` is TAI in nanoseconds. */
MXL_EXPORT
mxlStatus mxlFlowSynchronizationGroupWaitForDataAt(mxlFlowSynchronizationGroup group, uint64_t timestamp,
						   uint64_t timeoutNs);

#ifdef __cplusplus
}
#endif

#endif
