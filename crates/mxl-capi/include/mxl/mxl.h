/*
 * Statuses, versions and instances.
 *
 * Functions return a status unless stated otherwise. They log details to standard error, at the level of the variable
 * MXL_LOG_LEVEL: off, error, warn (the default), info, debug, trace.
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
	/* The data was overwritten. */
	MXL_ERR_OUT_OF_RANGE_TOO_LATE = 3,
	/* The data is not written yet. */
	MXL_ERR_OUT_OF_RANGE_TOO_EARLY = 4,
	/* Null, or a handle of another kind. */
	MXL_ERR_INVALID_FLOW_READER = 5,
	MXL_ERR_INVALID_FLOW_WRITER = 6,
	MXL_ERR_TIMEOUT = 7,
	MXL_ERR_INVALID_ARG = 8,
	/* The flow exists and differs from the definition; or another initiator writes to the targets (mxl/fabrics.h). */
	MXL_ERR_CONFLICT = 9,
	MXL_ERR_PERMISSION_DENIED = 10,
	/* The flow was deleted or replaced, or a file of it was truncated: open it again. */
	MXL_ERR_FLOW_INVALID = 11,

	/* Statuses of mxl/fabrics.h. */
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
	/* Owned by the library; it stays valid. */
	char const *full;
} mxlVersionType;

MXL_EXPORT
mxlStatus mxlGetVersion(mxlVersionType *out_version);

/* A domain, and the objects that a program has open in it. Several threads may use it at a time. */
typedef struct mxlInstance_t *mxlInstance;

/* Opens an existing directory. Options may be null. Returns null if it is not a directory. */
MXL_EXPORT
mxlInstance mxlCreateInstance(char const *in_mxlDomain, char const *in_options);

/* Closes all open objects. Flows without another writer are deleted. */
MXL_EXPORT
mxlStatus mxlDestroyInstance(mxlInstance in_instance);

/* Deletes flows without writers, and the remains of flows whose creation was interrupted. */
MXL_EXPORT
mxlStatus mxlGarbageCollectFlows(mxlInstance in_instance);

/* Whether a path lies on a file system in memory (tmpfs). */
MXL_EXPORT
mxlStatus mxlIsTmpFs(char const *in_path, bool *out_isTmpFs);

#ifdef __cplusplus
}
#endif

#endif
