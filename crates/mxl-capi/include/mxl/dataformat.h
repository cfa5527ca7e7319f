/* Kinds of flows. */
#ifndef MXL_DATAFORMAT_H
#define MXL_DATAFORMAT_H

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a grain of ancillary data. */
#define MXL_DATA_FORMAT_GRAIN_SIZE 4096

typedef enum mxlDataFormat {
	MXL_DATA_FORMAT_UNSPECIFIED = 0,
	MXL_DATA_FORMAT_VIDEO = 1,
	MXL_DATA_FORMAT_AUDIO = 2,
	MXL_DATA_FORMAT_DATA = 3,
} mxlDataFormat;

/* A ring of grains. */
static inline int mxlIsDiscreteDataFormat(int format)
{
	return format == MXL_DATA_FORMAT_VIDEO || format == MXL_DATA_FORMAT_DATA;
}

/* A ring of samples for each channel. */
static inline int mxlIsContinuousDataFormat(int format)
{
	return format == MXL_DATA_FORMAT_AUDIO;
}

static inline int mxlIsValidDataFormat(int format)
{
	return mxlIsDiscreteDataFormat(format) || mxlIsContinuousDataFormat(format);
}

static inline int mxlIsSupportedDataFormat(int format)
{
	return mxlIsValidDataFormat(format);
}

#ifdef __cplusplus
}
#endif

#endif
