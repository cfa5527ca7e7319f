/* Shared by the programs here: checks that end them, and two flows. */
#ifndef COMMON_H
#define COMMON_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mxl/flow.h>
#include <mxl/mxl.h>

#define CHECK(condition)                                                                \
	do {                                                                            \
		if (!(condition)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			exit(1);                                                        \
		}                                                                       \
	} while (0)
#define OK(call) CHECK((call) == MXL_STATUS_OK)

#define VIDEO "5fbec3b1-1b0f-417d-9059-8b94a47197ed"
#define AUDIO "b3bb5be7-9fe9-4324-a5bb-4c70e1084449"
#define TAGS "\"label\": \"test\", \"tags\": {\"urn:x-nmos:tag:grouphint/v1.0\": [\"test:role\"]}"

static const char video_definition[] =
	"{\"id\": \"" VIDEO "\", \"format\": \"urn:x-nmos:format:video\", \"media_type\": \"video/v210\", " TAGS ","
	"\"grain_rate\": {\"numerator\": 50}, \"frame_width\": 96, \"frame_height\": 8}";
static const char audio_definition[] =
	"{\"id\": \"" AUDIO "\", \"format\": \"urn:x-nmos:format:audio\", \"media_type\": \"audio/float32\", " TAGS ","
	"\"sample_rate\": {\"numerator\": 48000}, \"channel_count\": 3, \"bit_depth\": 32}";
static const uint64_t second = 1000000000;

#endif
