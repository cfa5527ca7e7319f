/* The interface of these headers: the version of the C++ SDK with the same interface. */
#ifndef MXL_VERSION_H
#define MXL_VERSION_H

#define MXL_VERSION_MAJOR 1
#define MXL_VERSION_MINOR 2
#define MXL_VERSION_PATCH 0
#define MXL_VERSION_BUILD 0
#define MXL_VERSION_FULL "1.2.0 (ofi-rs)"

#endif
