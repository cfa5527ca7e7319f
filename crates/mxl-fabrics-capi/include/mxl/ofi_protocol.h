/*
 * Which protocol a pair of ends speaks. This is an extension: the C++ SDK does not have these functions. A program that
 * must run on both libraries looks them up with dlsym().
 */
#ifndef MXL_OFI_PROTOCOL_H
#define MXL_OFI_PROTOCOL_H

#include <mxl/fabrics.h>

#ifdef __cplusplus
extern "C" {
#endif

/* No pair: the target was not added, or no initiator is connected. */
#define OFI_MXL_PROTOCOL_NONE 0
/* This library's own, with credits and reports. */
#define OFI_MXL_PROTOCOL_OWN 1
/* The C++ SDK's: plain writes. */
#define OFI_MXL_PROTOCOL_SDK 2

/* The protocol that an initiator speaks to a target that was added by this info, or by another one with its id. */
MXL_EXPORT
mxlStatus ofiMxlInitiatorGetProtocol(mxlFabricsInitiator in_initiator, mxlFabricsTargetInfo in_info, int *out_protocol);

/*
 * The protocol of the initiator that is connected to a target. MXL_ERR_INVALID_STATE before its setup, and for a merge.
 */
MXL_EXPORT
mxlStatus ofiMxlTargetGetProtocol(mxlFabricsTarget in_target, int *out_protocol);

#ifdef __cplusplus
}
#endif

#endif
