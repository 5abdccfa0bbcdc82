/* Whole numbers that logits are drawn by: e^((x - top) / temperature) in units of 2^-42, the rest cut off.
 *
 * They are the same to the bit in all variants of the library, and by 1 of 2^42 at most other ones than torch's. */
#pragma once

#include "../simd/simd.h"
#include "../simd/functions.h"
#include "../linear/rounded.h"

#include <math.h>
#include <stdint.h>

#define ONE 0x1p42 /* the weight of the likeliest */

typedef struct {
    float top;
    double temperature, rate; /* rate: steps of a sixteenth of an octave for a logit's 1 */
} weighing;

INLINE weighing weighing_of(float top, float temperature) {
    const double bounded = temperature > 1e-30 ? temperature : 1e-30;
    return (weighing){top, bounded, 23.083120654223414 / bounded};
}

/* Bits of 2^(42 + i / 16), less i in the bits above 2^48. */
static const int64_t POWERS[16] = {
    0x4290000000000000, 0x428fb5586cf9890f, 0x428f72b83c7d517b, 0x428f387a6e756238,
    0x428f06fe0a31b715, 0x428edea64c123422, 0x428ebfdad5362a27, 0x428eab07dd485429,
    0x428ea09e667f3bcd, 0x428ea11473eb0187, 0x428eace5422aa0db, 0x428ec49182a3f090,
    0x428ee89f995ad3ad, 0x428f199bdd85529c, 0x428f5818dcfba487, 0x428fa4afa2a490da
};

INLINE vl vd_weigh(vd x, weighing by) {
    const vd round = vd_set(0x1.8p52); /* added: a whole number, in the lowest bits */
    const vd steps = vd_max(vd_mul(vd_sub(x, vd_set(by.top)), vd_set(by.rate)), vd_set(-704.0)); /* 2^-44 */
    const vd rounded = vd_add(steps, round), r = vd_sub(steps, vd_sub(rounded, round));
    vd p = vd_set(0x1.5d896af6b1f78p-30); /* 2^(r / 16) to 2^-46 */
    p = vd_fma(p, r, vd_set(0x1.3b2c4abfc9b92p-23));
    p = vd_fma(p, r, vd_set(0x1.c6b08d6f3ff6dp-17));
    p = vd_fma(p, r, vd_set(0x1.ebfbdff6989c8p-11));
    p = vd_fma(p, r, vd_set(0x1.62e42fefa39efp-5));
    p = vd_fma(p, r, vd_set(1.0));
    return vd_whole(vd_mul(vd_lookup(POWERS, rounded), p));
}

/* Returns the sum of the weights of `num` logits, and writes them unless `weights` is NULL: room for LANES more. */
INLINE int64_t weigh_logits(const float *x, int32_t num, weighing by, int64_t *weights) {
    enum { HALF = LANES / 2 };
    vl sums = vl_zero();
    int32_t i = 0;
    for (; i + HALF <= num; i += HALF) {
        const vl found = vd_weigh(vd_widen(x + i), by);
        sums = vl_add(sums, found);
        if (weights) vl_store(weights + i, found);
    }
    if (i < num) {
        float rest[HALF];
        for (int32_t k = 0; k < HALF; k++) rest[k] = i + k < num ? x[i + k] : -INFINITY;
        const vl found = vd_weigh(vd_widen(rest), by);
        sums = vl_add(sums, found);
        if (weights) vl_store(weights + i, found);
    }
    return vl_sum(sums);
}

/* The sum of weights, off by DOUBT of it at most, in a quarter of the time. Exponents to e^-32, below which is nothing, are
 * rounded three times (32 * 3 * 2^-24), and up to 64 numbers are added in float32 (64 * 2^-24): `num` is at most 512. */
#define DOUBT 0x1p-16
INLINE double weigh_roughly(const float *x, int32_t num, weighing by) {
    const vf top = vf_set(by.top), rate = vf_set((float)(1.0 / by.temperature));
    vf sums = vf_zero();
    int32_t i = 0;
    for (; i + LANES <= num; i += LANES) sums = vf_add(sums, vf_exp(vf_mul(vf_sub(vf_load(x + i), top), rate)));
    return (double)vf_sum(sums) * ONE + (double)(i < num ? weigh_logits(x + i, num - i, by, NULL) : 0);
}

/* A logit that weighs less than `weight`, which logits that weigh as much are above of. */
INLINE float logit_below(double weight, weighing by) {
    return (float)(by.top + by.temperature * log(weight / ONE) * 1.0001 - 1e-3 - 1e-5 * fabsf(by.top));
}
