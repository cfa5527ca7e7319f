/* Rates. */
#ifndef MXL_RATIONAL_H
#define MXL_RATIONAL_H

#include <mxl/platform.h>

#ifdef __cplusplus
extern "C" {
#endif

/* No index: the result for a rate with a 0. */
#define MXL_UNDEFINED_INDEX UINT64_MAX

/* Grains or samples in `denominator` seconds. */
typedef struct mxlRational_t {
	int64_t numerator;
	int64_t denominator;
} mxlRational;

#ifdef __cplusplus
}
#endif

#endif
