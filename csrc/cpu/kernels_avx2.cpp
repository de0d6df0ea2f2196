// The kernels for AVX2, FMA, F16C and BMI2.
#include "instruction_sets.h"

#if defined(ONNXPOOL_X86)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi2")
#endif

#define ONNXPOOL_VECTOR_BYTES 32
#define ONNXPOOL_FMA
#define ONNXPOOL_F16C
#define ONNXPOOL_ISA avx2
#include "kernels.inl"

#include "find_plans.inl"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
