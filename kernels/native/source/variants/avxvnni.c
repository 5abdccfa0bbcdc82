/* The library for processors with AVX2 and AVX-VNNI. */
#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi,bmi2,popcnt,avxvnni"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,popcnt,avxvnni")
#endif
#define AVX_VNNI
#define VNNI_256 _mm256_dpbusd_avx_epi32
#include "../body.h"

const bough_variant bough_avxvnni = VARIANT("AVX-VNNI");
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
