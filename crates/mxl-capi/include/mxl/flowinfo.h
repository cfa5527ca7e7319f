/* The description and the state of a flow. The structures are the bytes of a flow's file. */
#ifndef MXL_FLOWINFO_H
#define MXL_FLOWINFO_H

#include <mxl/dataformat.h>
#include <mxl/platform.h>
#include <mxl/rational.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MXL_MAX_PLANES_PER_GRAIN 4

typedef enum mxlPayloadLocation {
	MXL_PAYLOAD_LOCATION_HOST_MEMORY = 0,
	MXL_PAYLOAD_LOCATION_DEVICE_MEMORY = 1,
} mxlPayloadLocation;

typedef struct mxlCommonFlowConfigInfo_t {
	/* In the order of the UUID's text. */
	uint8_t id[16];
	/* An mxlDataFormat. */
	uint32_t format;
	uint32_t flags;
	/* Grains or samples per second; fields, for interlaced video. */
	mxlRational grainRate;
	/* Slices or samples of the largest commit. */
	uint32_t maxCommitBatchSizeHint;
	/* Most slices or samples after which readers are woken. */
	uint32_t maxSyncBatchSizeHint;
	/* An mxlPayloadLocation. */
	uint32_t payloadLocation;
	/* -1: none. */
	int32_t deviceIndex;
	uint8_t reserved[72];
} mxlCommonFlowConfigInfo;

typedef struct mxlDiscreteFlowConfigInfo_t {
	/* Bytes of a slice in each plane: a line of video, a byte of data. */
	uint32_t sliceSizes[MXL_MAX_PLANES_PER_GRAIN];
	/* Grains of the ring. */
	uint32_t grainCount;
	uint8_t reserved[44];
} mxlDiscreteFlowConfigInfo;

typedef struct mxlContinuousFlowConfigInfo_t {
	uint32_t channelCount;
	/* Samples in each channel's ring; half of them can be read or written at once. */
	uint32_t bufferLength;
	uint8_t reserved[56];
} mxlContinuousFlowConfigInfo;

typedef struct mxlFlowConfigInfo_t {
	mxlCommonFlowConfigInfo common;
	/* Selected by the format. */
	union {
		mxlDiscreteFlowConfigInfo discrete;
		mxlContinuousFlowConfigInfo continuous;
	};
} mxlFlowConfigInfo;

typedef struct mxlFlowRuntimeInfo_t {
	/* The newest committed index. */
	uint64_t headIndex;
	/* Nanoseconds of TAI. */
	uint64_t lastWriteTime;
	uint64_t lastReadTime;
	uint8_t reserved[40];
} mxlFlowRuntimeInfo;

typedef struct mxlFlowInfo_t {
	/* 1. */
	uint32_t version;
	/* Bytes of this structure. */
	uint32_t size;
	mxlFlowConfigInfo config;
	mxlFlowRuntimeInfo runtime;
	uint8_t reserved[1784];
} mxlFlowInfo;

#ifdef __cplusplus
}
#endif

#endif
