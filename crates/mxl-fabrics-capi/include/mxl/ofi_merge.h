/*
 * Hitless merge, as in ST 2022-7: a target receives one flow on several paths, each with its own initiator,
 * and the first copy of a grain or a sample wins. This is an extension: the C++ SDK does not have these
 * functions. A program that must run on both libraries looks up ofiMxlMergeVersion with dlsym().
 *
 * The target is created, read and destroyed like any other (mxl/fabrics.h). Each path has its own flow in the
 * same domain, with a random id. Only valid data is copied from there into the merged flow, so an initiator
 * that dies in the middle of a grain does no damage.
 */
#ifndef MXL_OFI_MERGE_H
#define MXL_OFI_MERGE_H

#include <mxl/fabrics.h>

#define OFI_MXL_MERGE_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the extension in this library. Each version has all functions of the earlier ones. */
MXL_EXPORT
int ofiMxlMergeVersion(void);

/*
 * Sets up a target as a merge of 2 to 8 paths. Each configuration has the interface of one path, and all have
 * the same writer: that of the merged flow, which must have no other writer. Returns the info of each path in
 * an array of `count` entries; give each info to one initiator. Options, or null: {"progressThread": true},
 * and {"ids": ["N", ...]} with an id for each path, like the option "id" of mxlFabricsTargetSetup.
 */
MXL_EXPORT
mxlStatus ofiMxlTargetSetupMerge(mxlFabricsTarget in_target, mxlFabricsTargetConfig const *in_configs, size_t in_count,
				 char const *in_options, mxlFabricsTargetInfo *out_infos);

/*
 * `published`, `lost`, `invalid` and `mended` count grains; `duplicates`, `late` and `strange` count copies of
 * grains. For a flow of samples, the former count samples, and the latter batches.
 */
typedef struct ofiMxlMergeStats_t {
	/* Bit N: path N has an initiator. */
	uint64_t connected;
	/* Published whole, invalid ones included. */
	uint64_t published;
	/* Copies without new data. */
	uint64_t duplicates;
	/* Copies that arrived when their slot held another grain. */
	uint64_t late;
	/* Copies with indices far from all others, without confirmation. */
	uint64_t strange;
	/* Arrived complete on no path. */
	uint64_t lost;
	/* Published as invalid. */
	uint64_t invalid;
	/* Invalid grains that another path replaced by valid ones. */
	uint64_t mended;
} ofiMxlMergeStats;

/*
 * Writes the first `size` bytes of the statistics; pass sizeof(ofiMxlMergeStats). MXL_ERR_INVALID_STATE for a
 * target that is not a merge.
 */
MXL_EXPORT
mxlStatus ofiMxlTargetGetMergeStats(mxlFabricsTarget in_target, ofiMxlMergeStats *out_stats, size_t in_size);

#ifdef __cplusplus
}
#endif

#endif
