// The kernels for AVX-512 F, BW, DQ and VL.
#include "instruction_sets.h"

#if defined(ONNXPOOL_X86)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2,prefer-vector-width=512")
#endif

#define ONNXPOOL_VECTOR_BYTES 64
#define ONNXPOOL_AVX512
#define ONNXPOOL_FMA
#define ONNXPOOL_F16C
#define ONNXPOOL_ISA avx512
#include "kernels.inl"

#include "find_plans.inl"

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
