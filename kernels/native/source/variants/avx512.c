/* The library for processors with AVX-512 and VNNI. */
#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi,bmi2,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi,bmi2,popcnt")
#endif
#define BOUGH_AVX512
#include "../body.h"

const bough_variant bough_avx512 = VARIANT("AVX-512");
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
