/* Functions of vectors. */
#pragma once

#include "simd.h"

#include <math.h>
#include <stdint.h>

#ifndef STORES_CHOSEN
/* The lanes of `a` whose bits are set, and their places from `start` on, one after the other; writes LANES of each. */
INLINE void store_chosen(vf a, int32_t start, uint32_t bits, float *values, int32_t *places) {
    float all[LANES];
    vf_store(all, a);
    for (int32_t i = 0; bits; bits &= bits - 1, i++) {
        const int32_t lane = __builtin_ctz(bits);
        values[i] = all[lane], places[i] = start + lane;
    }
}
#endif

/* e^x to 2 units in the last place, for -87.3 <= x <= 88; at least 1e-38. Cody-Waite reduction and the polynomial of Cephes' expf. */
INLINE vf vf_exp(vf x) {
    x = vf_max(x, vf_set(-87.3f));
    const vf n = vf_round(vf_mul(x, vf_set(1.44269504088896341f)));
    const vf r = vf_fma(n, vf_set(2.12194440e-4f), vf_fma(n, vf_set(-0.693359375f), x));
    vf p = vf_set(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set(5.0000001201e-1f));
    p = vf_fma(p, vf_mul(r, r), vf_add(r, vf_set(1.0f)));
    return vf_scale2(p, n);
}

/* 2^x for x <= 127, to 4 units in the last place, and 2^127 above; at least 2^-125, as denormal numbers are slow. The
 * polynomial is minimax. NaN of NaN, and of infinity: the second operand of a maximum is the result if either is NaN. */
INLINE vf vf_exp2(vf x) {
    x = vf_max(vf_set(-125.0f), x);
    const vf r = vf_fraction(x);
    vf p = vf_set(0.0018775765784084797f);
    p = vf_fma(p, r, vf_set(0.008989340625703335f));
    p = vf_fma(p, r, vf_set(0.05582631751894951f));
    p = vf_fma(p, r, vf_set(0.24015361070632935f));
    p = vf_fma(p, r, vf_set(0.6931530833244324f));
    p = vf_fma(p, r, vf_set(0.9999999403953552f));
    return vf_scale2(p, vf_min(vf_set(127.0f), x));
}

/* Bits of 2^(i / 32), less i in the bits above 2^47. */
static const uint64_t ROOTS[32] = {
    0x3ff0000000000000, 0x3fefd9b0d3158574, 0x3fefb5586cf9890f, 0x3fef9301d0125b51,
    0x3fef72b83c7d517b, 0x3fef54873168b9aa, 0x3fef387a6e756238, 0x3fef1e9df51fdee1,
    0x3fef06fe0a31b715, 0x3feef1a7373aa9cb, 0x3feedea64c123422, 0x3feece086061892d,
    0x3feebfdad5362a27, 0x3feeb42b569d4f82, 0x3feeab07dd485429, 0x3feea47eb03a5585,
    0x3feea09e667f3bcd, 0x3fee9f75e8ec5f74, 0x3feea11473eb0187, 0x3feea589994cce13,
    0x3feeace5422aa0db, 0x3feeb737b0cdc5e5, 0x3feec49182a3f090, 0x3feed503b23e255d,
    0x3feee89f995ad3ad, 0x3feeff76f2fb5e47, 0x3fef199bdd85529c, 0x3fef3720dcef9069,
    0x3fef5818dcfba487, 0x3fef7c97337b9b5f, 0x3fefa4afa2a490da, 0x3fefd0765b6e4540
};

/* 2^x of one number, x <= 0, to half a unit in the last place. The C library's exp2f is not used since there are many; these
 * are the bits of glibc's, which has the polynomial from ARM's optimized routines. */
INLINE float exp2_of(float x) {
    if (x < -150.0f) return 0.0f;
    const double round = 0x1.8p47; /* added: a whole number of 32nds, in the lowest bits */
    const double rounded = (double)x + round, r = (double)x - (rounded - round);
    double power;
    uint64_t bits;
    __builtin_memcpy(&bits, &rounded, 8);
    bits = ROOTS[bits % 32] + (bits << 47);
    __builtin_memcpy(&power, &bits, 8);
    const double p = __builtin_fma(0x1.c6af84b912394p-5, r, 0x1.ebfce50fac4f3p-3), q = __builtin_fma(0x1.62e42ff0c52d6p-1, r, 1.0);
    return (float)(__builtin_fma(p, r * r, q) * power);
}

/* The same number, but NaN for infinity. */
INLINE vf vf_or_nan(vf a) { return vf_fma(a, vf_zero(), a); }

/* x / (1 + e^-x). A division, since the reciprocals that are estimates differ between processors. */
INLINE vf vf_silu(vf x) {
    const vf y = vf_add(vf_set(1.0f), vf_exp2(vf_min(vf_mul(x, vf_set(-1.44269504f)), vf_set(125.0f))));
    return vf_div(x, y);
}

/* Bytes of four rows, by dimension: out[i] has, of each row, the dimensions that vi_unpack_low and vi_unpack_high of widened
 * rows leave in the i-th vector. */
INLINE void vi_unpack_bytes(const uint8_t *const rows[4], vi out[4]) {
    vi own[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) own[i] = vi_mingle_halves(vi_load(rows[i]));
    const vi low = vi_unpack_low_bytes(own[0], own[1]), other_low = vi_unpack_low_bytes(own[2], own[3]);
    const vi high = vi_unpack_high_bytes(own[0], own[1]), other_high = vi_unpack_high_bytes(own[2], own[3]);
    out[0] = vi_unpack_low(low, other_low), out[1] = vi_unpack_high(low, other_low);
    out[2] = vi_unpack_low(high, other_high), out[3] = vi_unpack_high(high, other_high);
}
