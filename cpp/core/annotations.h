// Marks functions that run on the host and, under nvcc, on the device too.
#pragma once

#if defined(__CUDACC__)
#define DYNEMB_HD __host__ __device__ inline
#else
#define DYNEMB_HD inline
#endif

// Hot host loops are compiled for the baseline and for AVX2; the loader picks.
// Sanitizers instrument before the loader can resolve such functions.
#if defined(__x86_64__) && defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__CUDACC__)
#define DYNEMB_MULTIVERSION __attribute__((target_clones("avx2", "default")))
#else
#define DYNEMB_MULTIVERSION
#endif
