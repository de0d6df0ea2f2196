// Marks functions that GPUs run as well.
#pragma once

#if defined(__CUDACC__)
#define ONNXPOOL_HOST_DEVICE __host__ __device__
#else
#define ONNXPOOL_HOST_DEVICE
#endif
