/* Shared by the programs here. */
#ifndef FABRICS_COMMON_H
#define FABRICS_COMMON_H

#include <mxl/fabrics.h>

#include "../../../mxl-capi/tests/programs/common.h"

#endif
