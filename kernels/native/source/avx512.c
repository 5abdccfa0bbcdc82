/* The library for processors with AVX-512 and VNNI. */
#if defined(__x86_64__)
#include <immintrin.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi,bmi2,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi,bmi2,popcnt")
#endif
#include "bough_cpu.h"
#include "pool.h"
#include "variants.h"
#include "simd_avx512.h"
#include "functions.h"
#include "doubles_avx512.h"
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

const bough_variant bough_avx512 = {
    LANES, forward_pass, multiply_rows, mix_weight, read_row, find_peak, sum_exp, sample_rows, sampling_bytes, workspace_bytes,
};
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
