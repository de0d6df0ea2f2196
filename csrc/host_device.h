// Marks functions that GPUs run as well, and those that are too large there to be copied to where they are called.
#pragma once

#if defined(__CUDACC__)
#define ONNXPOOL_HOST_DEVICE __host__ __device__
#define ONNXPOOL_HOST_DEVICE_CALL ONNXPOOL_HOST_DEVICE __attribute__((noinline))
#else
#define ONNXPOOL_HOST_DEVICE
#define ONNXPOOL_HOST_DEVICE_CALL inline
#endif
