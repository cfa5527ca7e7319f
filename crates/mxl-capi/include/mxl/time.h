/* Time is TAI in nanoseconds since 1970; an index counts grains or samples since then. Rounding is to the nearest. */
#ifndef MXL_TIME_H
#define MXL_TIME_H

#include <mxl/platform.h>
#include <mxl/rational.h>

#ifdef __cplusplus
extern "C" {
#endif

MXL_EXPORT
uint64_t mxlGetTime(void);

/* MXL_UNDEFINED_INDEX for a rate that is null or has a 0. The same holds for the next three functions. */
MXL_EXPORT
uint64_t mxlGetCurrentIndex(mxlRational const *editRate);

MXL_EXPORT
uint64_t mxlTimestampToIndex(mxlRational const *editRate, uint64_t timestamp);

MXL_EXPORT
uint64_t mxlIndexToTimestamp(mxlRational const *editRate, uint64_t index);

/* 0 for an index that has begun. */
MXL_EXPORT
uint64_t mxlGetNsUntilIndex(uint64_t index, mxlRational const *editRate);

MXL_EXPORT
void mxlSleepForNs(uint64_t ns);

MXL_EXPORT
void mxlSleepUntil(uint64_t timestamp);

#ifdef __cplusplus
}
#endif

#endif
