// The kernels for what every machine of the platform has: SSE2 on x86-64, NEON on aarch64.
#include "instruction_sets.h"

#define ONNXPOOL_VECTOR_BYTES 16
#define ONNXPOOL_ISA baseline
#include "kernels.inl"

#include "find_plans.inl"
