/*
 * Flows between hosts: an initiator writes a flow into the rings of targets.
 *
 * Both ends use this library; over TCP either end may be the C++ SDK's. Several threads may use the objects of one
 * instance; each call locks its object.
 */
#ifndef MXL_FABRICS_H
#define MXL_FABRICS_H

#include <mxl/flow.h>
#include <mxl/mxl.h>
#include <mxl/platform.h>

/* The value of every field called version. */
#define MXL_FABRICS_API_VERSION 0
#define MXL_FABRICS_FLAG(n) (1 << (n))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mxlFabricsInstance_t *mxlFabricsInstance;
typedef struct mxlFabricsTarget_t *mxlFabricsTarget;
typedef struct mxlFabricsTargetInfo_t *mxlFabricsTargetInfo;
typedef struct mxlFabricsInitiator_t *mxlFabricsInitiator;

typedef enum mxlFabricsProvider_t {
	/* In queries only. */
	MXL_FABRICS_PROVIDER_ANY = 0,
	/* TCP connections, as in the C++ SDK. */
	MXL_FABRICS_PROVIDER_TCP = 1,
	MXL_FABRICS_PROVIDER_VERBS = 2,
	MXL_FABRICS_PROVIDER_EFA = 3,
	/* Processes of one host. */
	MXL_FABRICS_PROVIDER_SHM = 4,
	/* Reliable transfer over UDP datagrams; not in the C++ SDK. */
	MXL_FABRICS_PROVIDER_UDP = 5,
} mxlFabricsProvider;

typedef struct mxlFabricsEndpointAddress_t {
	/* An address of this host; over shared memory a name, or a part of the name if there is a service. */
	char const *node;
	/* A port. Null or "0": any. */
	char const *service;
} mxlFabricsEndpointAddress;

typedef enum mxlFabricsInterfaceCapFlags_t {
	MXL_FABRICS_IFACE_CAP_BLOCKING_OPERATIONS = MXL_FABRICS_FLAG(0),
	/* Payloads are written into the target's ring. */
	MXL_FABRICS_IFACE_CAP_REMOTE_WRITE = MXL_FABRICS_FLAG(1),
	/* Alone: payloads travel in messages, which the target copies into its ring. Either end may request it. */
	MXL_FABRICS_IFACE_CAP_SEND_RECEIVE = MXL_FABRICS_FLAG(2),
} mxlFabricsInterfaceCapFlags;

typedef struct mxlFabricsInterfaceCaps_t {
	int version;
	uint64_t flags;
	/* In bytes, at least 512; longer transfers are split. 0: the provider's limit. */
	uint64_t maxMessageSize;
} mxlFabricsInterfaceCaps;

typedef struct mxlFabricsInterfaceConfig_t {
	int version;
	mxlFabricsProvider provider;
	mxlFabricsInterfaceCaps caps;
	mxlFabricsEndpointAddress address;
	/* A JSON object; set by mxlFabricsGetInterfaces, ignored elsewhere. */
	char const *attr;
} mxlFabricsInterfaceConfig;

typedef struct mxlFabricsInterfaceList_t mxlFabricsInterfaceList;
struct mxlFabricsInterfaceList_t {
	mxlFabricsInterfaceList *next;
	mxlFabricsInterfaceConfig interface;
};

typedef struct mxlFabricsTargetConfig_t {
	int version;
	mxlFabricsInterfaceConfig interface;
	/* A writer of the flow that initiators write. The target opens the flow for itself. */
	mxlFlowWriter writer;
} mxlFabricsTargetConfig;

typedef struct mxlFabricsInitiatorConfig_t {
	int version;
	mxlFabricsInterfaceConfig interface;
	/* A reader of the flow that is sent. The initiator opens the flow for itself. */
	mxlFlowReader reader;
} mxlFabricsInitiatorConfig;

/* Options may be null. */
MXL_EXPORT
mxlStatus mxlFabricsCreateInstance(mxlInstance in_instance, char const *options, mxlFabricsInstance *out_fabricsInstance);

/* Destroys its targets and initiators too. */
MXL_EXPORT
mxlStatus mxlFabricsDestroyInstance(mxlFabricsInstance in_instance);

/* The interfaces of this host for a query's provider and node; all, if the query is null or leaves them open. */
MXL_EXPORT
mxlStatus mxlFabricsGetInterfaces(mxlFabricsInstance in_instance, mxlFabricsInterfaceConfig const *in_query,
				  mxlFabricsInterfaceList **out_list);

MXL_EXPORT
mxlStatus mxlFabricsFreeInterfaceList(mxlFabricsInterfaceList *interfaceList);

MXL_EXPORT
mxlStatus mxlFabricsCreateTarget(mxlFabricsInstance in_fabricsInstance, mxlFabricsTarget *out_target);

MXL_EXPORT
mxlStatus mxlFabricsDestroyTarget(mxlFabricsInstance in_fabricsInstance, mxlFabricsTarget in_target);

/*
 * Returns the target's address in an info, which mxlFabricsFreeTargetInfo frees. Options, or null: {"cqDepth": N}, N
 * at least 1. Not in the C++ SDK: {"progressThread": true}, a thread of the library publishes arriving data;
 * {"id": "N"}, the 64-bit id of the info. Initiators reconnect to a target that is set up again at its old
 * address with its old id.
 */
MXL_EXPORT
mxlStatus mxlFabricsTargetSetup(mxlFabricsTarget in_target, mxlFabricsTargetConfig const *in_config, char const *in_options,
				mxlFabricsTargetInfo *out_info);

/*
 * The index of the oldest grain of which a part has arrived since the last call, or MXL_ERR_NOT_READY. The part is
 * committed already: a reader of the flow sees it. Targets without a progress thread make progress in these calls only.
 */
MXL_EXPORT
mxlStatus mxlFabricsTargetReadGrainNonBlocking(mxlFabricsTarget in_target, uint64_t *out_grainIndex);

/* The same, but waits for at most the given number of milliseconds. */
MXL_EXPORT
mxlStatus mxlFabricsTargetReadGrain(mxlFabricsTarget in_target, uint16_t in_timeoutMs, uint64_t *out_entryIndex);

/* The oldest batch of samples that arrived since the last call: `count` samples before `headIndex`. */
MXL_EXPORT
mxlStatus mxlFabricsTargetReadSamplesNonBlocking(mxlFabricsTarget in_target, uint64_t *out_headIndex, size_t *out_count);

MXL_EXPORT
mxlStatus mxlFabricsTargetReadSamples(mxlFabricsTarget in_target, uint16_t in_timeoutMs, uint64_t *out_headIndex,
				      size_t *out_count);

MXL_EXPORT
mxlStatus mxlFabricsCreateInitiator(mxlFabricsInstance in_fabricsInstance, mxlFabricsInitiator *out_initiator);

MXL_EXPORT
mxlStatus mxlFabricsDestroyInitiator(mxlFabricsInstance in_fabricsInstance, mxlFabricsInitiator in_initiator);

/* Options, or null: {"progressThread": true} (not in the C++ SDK): a thread of the library sends transfers. */
MXL_EXPORT
mxlStatus mxlFabricsInitiatorSetup(mxlFabricsInitiator in_initiator, mxlFabricsInitiatorConfig const *in_config,
				   char const *in_options);

MXL_EXPORT
mxlStatus mxlFabricsInitiatorAddTarget(mxlFabricsInitiator in_initiator, mxlFabricsTargetInfo in_targetInfo);

MXL_EXPORT
mxlStatus mxlFabricsInitiatorRemoveTarget(mxlFabricsInitiator in_initiator, mxlFabricsTargetInfo in_targetInfo);

/*
 * Submits slices start..end of a grain, as they are in the ring, to all connected targets; 0..0 announces that the
 * grain is invalid. Never waits. The progress calls send the data.
 */
MXL_EXPORT
mxlStatus mxlFabricsInitiatorTransferGrain(mxlFabricsInitiator in_initiator, uint64_t in_grainIndex, uint16_t in_startSlice,
					   uint16_t in_endSlice);

/* Submits the `count` samples before `headIndex` to all connected targets. */
MXL_EXPORT
mxlStatus mxlFabricsInitiatorTransferSamples(mxlFabricsInitiator in_initiator, uint64_t in_headIndex, size_t in_count);

/*
 * MXL_STATUS_OK once all targets are connected and all transfers have arrived; otherwise MXL_ERR_NOT_READY. A target
 * that says that it closes is greeted again until it is back. A target serves one initiator, the newest: the replaced
 * one does not compete, and the target no longer counts for it. If no other target is left, these calls return
 * MXL_ERR_CONFLICT until mxlFabricsInitiatorAddTarget adds the target again, which replaces the other initiator.
 */
MXL_EXPORT
mxlStatus mxlFabricsInitiatorMakeProgressNonBlocking(mxlFabricsInitiator in_initiator);

/* The same, but waits for at most the given number of milliseconds. */
MXL_EXPORT
mxlStatus mxlFabricsInitiatorMakeProgressBlocking(mxlFabricsInitiator in_initiator, uint16_t in_timeoutMs);

/* any, tcp, verbs, efa, shm, udp. */
MXL_EXPORT
mxlStatus mxlFabricsProviderFromString(char const *in_string, mxlFabricsProvider *out_provider);

/* With a null buffer, returns the needed size; with a short buffer, MXL_ERR_STRLEN. The same holds for infos. */
MXL_EXPORT
mxlStatus mxlFabricsProviderToString(mxlFabricsProvider in_provider, char *out_string, size_t *in_stringSize);

MXL_EXPORT
mxlStatus mxlFabricsTargetInfoToString(mxlFabricsTargetInfo in_targetInfo, char *out_string, size_t *in_stringSize);

MXL_EXPORT
mxlStatus mxlFabricsTargetInfoFromString(char const *in_string, mxlFabricsTargetInfo *out_targetInfo);

MXL_EXPORT
mxlStatus mxlFabricsFreeTargetInfo(mxlFabricsTargetInfo in_info);

#ifdef __cplusplus
}
#endif

#endif
