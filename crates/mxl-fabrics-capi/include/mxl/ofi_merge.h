/*
 * Hitless merge, as in ST 2022-7: a target receives one flow by several paths, each with an initiator of its own, and
 * the first copy of a grain or a sample wins. An extension of this library: the C++ SDK does not have these functions.
 * A program that must run on both looks for ofiMxlMergeVersion by dlsym().
 *
 * The target is created, read and destroyed like any other (mxl/fabrics.h). Each path has a flow of its own in the same
 * domain, with a random id, from which valid data is copied into the merged flow: an initiator that dies in the middle of
 * a grain does no damage.
 */
#ifndef MXL_OFI_MERGE_H
#define MXL_OFI_MERGE_H

#include <mxl/fabrics.h>

#define OFI_MXL_MERGE_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library's extension; a later one has all functions of an earlier one. */
MXL_EXPORT
int ofiMxlMergeVersion(void);

/*
 * Sets a target up as a merge of 2 to 8 paths. Each configuration has the interface of a path and the same writer, that
 * of the merged flow, which nobody else may write. Returns the info of each path in an array of `count`; each is for one
 * initiator. Options, or null: {"progressThread": true}, and {"ids": ["N", ...]} with an id for each path, as the option
 * "id" of mxlFabricsTargetSetup.
 */
MXL_EXPORT
mxlStatus ofiMxlTargetSetupMerge(mxlFabricsTarget in_target, mxlFabricsTargetConfig const *in_configs, size_t in_count,
				 char const *in_options, mxlFabricsTargetInfo *out_infos);

/* For a flow of samples, published, lost and invalid count samples; otherwise grains, and copies of them. */
typedef struct ofiMxlMergeStats_t {
	/* Bit N: path N has an initiator. */
	uint64_t connected;
	/* Whole ones, invalid ones included. */
	uint64_t published;
	/* Copies without new data. */
	uint64_t duplicates;
	/* Copies that came when their slot held another grain. */
	uint64_t late;
	/* Copies with indices far from all others, without confirmation. */
	uint64_t strange;
	/* What no path brought. */
	uint64_t lost;
	/* Published as invalid. */
	uint64_t invalid;
	/* Invalid ones that another path replaced by valid ones. */
	uint64_t mended;
} ofiMxlMergeStats;

/* Writes the first `size` bytes, sizeof(ofiMxlMergeStats). MXL_ERR_INVALID_STATE for a target that is no merge. */
MXL_EXPORT
mxlStatus ofiMxlTargetGetMergeStats(mxlFabricsTarget in_target, ofiMxlMergeStats *out_stats, size_t in_size);

#ifdef __cplusplus
}
#endif

#endif
