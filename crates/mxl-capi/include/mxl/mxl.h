/*
 * Statuses, versions and instances.
 *
 * Functions answer a status unless they say otherwise. What they say beyond it goes to standard error, as the variable
 * MXL_LOG_LEVEL asks: off, error, warn (the default), info, debug, trace.
 */
#ifndef MXL_MXL_H
#define MXL_MXL_H

#include <mxl/platform.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mxlStatus {
	MXL_STATUS_OK = 0,
	MXL_ERR_UNKNOWN = 1,
	MXL_ERR_FLOW_NOT_FOUND = 2,
	/* Overwritten already. */
	MXL_ERR_OUT_OF_RANGE_TOO_LATE = 3,
	/* Not written yet. */
	MXL_ERR_OUT_OF_RANGE_TOO_EARLY = 4,
	/* Null, or a handle of another kind. */
	MXL_ERR_INVALID_FLOW_READER = 5,
	MXL_ERR_INVALID_FLOW_WRITER = 6,
	MXL_ERR_TIMEOUT = 7,
	MXL_ERR_INVALID_ARG = 8,
	/* The flow exists and is not what its definition says. */
	MXL_ERR_CONFLICT = 9,
	MXL_ERR_PERMISSION_DENIED = 10,
	/* The flow was deleted or made anew: open it again. */
	MXL_ERR_FLOW_INVALID = 11,

	/* Of mxl/fabrics.h. */
	MXL_ERR_STRLEN = 1024,
	MXL_ERR_INTERRUPTED = 1025,
	MXL_ERR_NO_FABRIC = 1026,
	MXL_ERR_INVALID_STATE = 1027,
	MXL_ERR_INTERNAL = 1028,
	MXL_ERR_NOT_READY = 1029,
	MXL_ERR_NOT_FOUND = 1030,
	MXL_ERR_EXISTS = 1031,
	MXL_ERR_UNSUPPORTED_OPERATION = 1032,
} mxlStatus;

typedef struct mxlVersionType {
	uint16_t major;
	uint16_t minor;
	uint16_t bugfix;
	uint16_t build;
	/* The library's; it stays. */
	char const *full;
} mxlVersionType;

MXL_EXPORT
mxlStatus mxlGetVersion(mxlVersionType *out_version);

/* A domain, and what a program has open in it. Its functions may be called by several threads. */
typedef struct mxlInstance_t *mxlInstance;

/* Opens a directory that is there. Options may be null. Answers null if it is no directory. */
MXL_EXPORT
mxlInstance mxlCreateInstance(char const *in_mxlDomain, char const *in_options);

/* Closes what is open. Flows that nobody else writes are deleted. */
MXL_EXPORT
mxlStatus mxlDestroyInstance(mxlInstance in_instance);

/* Deletes flows that nobody writes, and what is left of flows whose making was interrupted. */
MXL_EXPORT
mxlStatus mxlGarbageCollectFlows(mxlInstance in_instance);

/* Whether a path lies on a file system in memory. */
MXL_EXPORT
mxlStatus mxlIsTmpFs(char const *in_path, bool *out_isTmpFs);

#ifdef __cplusplus
}
#endif

#endif
