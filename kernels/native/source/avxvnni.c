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
#include "bough_cpu.h"
#include "pool.h"
#include "variants.h"
#include "simd_avx2.h"
#include "functions.h"
#include "doubles_avx2.h"
#include "tiles.h"
#include "hadamard.h"
#include "rounded.h"
#include "linear.h"
#include "chunk.h"
#include "plan.h"
#include "attention.h"
#include "forward.h"
#include "logits.h"
#include "weigh.h"
#include "choose.h"
#include "sampling.h"

const bough_variant bough_avxvnni = {
    LANES, forward_pass, multiply_rows, mix_weight, read_row, find_peak, sum_exp, sample_rows, sampling_bytes, workspace_bytes,
};
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
