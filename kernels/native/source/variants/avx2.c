/* The library for processors with AVX2. */
#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi,bmi2,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,popcnt")
#endif
#include "../body.h"

const bough_variant bough_avx2 = VARIANT("AVX2");
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
