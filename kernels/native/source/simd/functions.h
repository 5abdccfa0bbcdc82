/* Functions of vectors. */
#pragma once

#include "simd.h"

#include <stdint.h>

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

/* 2^x for x <= 128, to 4 units in the last place; at least 2^-125, as denormal numbers are slow. The polynomial is minimax.
 * NaN of NaN, and of infinity: the second operand of a maximum is the result if either is NaN. */
INLINE vf vf_exp2(vf x) {
    x = vf_max(vf_set(-125.0f), x);
    const vf r = vf_fraction(x);
    vf p = vf_set(0.0018775765784084797f);
    p = vf_fma(p, r, vf_set(0.008989340625703335f));
    p = vf_fma(p, r, vf_set(0.05582631751894951f));
    p = vf_fma(p, r, vf_set(0.24015361070632935f));
    p = vf_fma(p, r, vf_set(0.6931530833244324f));
    p = vf_fma(p, r, vf_set(0.9999999403953552f));
    return vf_scale2(p, x);
}

/* The same number, but NaN for infinity. */
INLINE vf vf_or_nan(vf a) { return vf_fma(a, vf_zero(), a); }

/* x / (1 + e^-x). A division, since the reciprocals that are estimates differ between processors. */
INLINE vf vf_silu(vf x) {
    const vf y = vf_add(vf_set(1.0f), vf_exp2(vf_min(vf_mul(x, vf_set(-1.44269504f)), vf_set(125.0f))));
    return vf_div(x, y);
}

/* Lanes 0 .. 3 of two vectors: the first and the second number at each of four places. */
INLINE void vf_gather(float *const from[4], vf *first, vf *second) {
    const __m128 a = _mm_loadh_pi(_mm_loadl_pi(_mm_setzero_ps(), (const __m64 *)from[0]), (const __m64 *)from[1]);
    const __m128 b = _mm_loadh_pi(_mm_loadl_pi(_mm_setzero_ps(), (const __m64 *)from[2]), (const __m64 *)from[3]);
    *first = vf_from_four(_mm_shuffle_ps(a, b, 0x88)), *second = vf_from_four(_mm_shuffle_ps(a, b, 0xdd));
}
INLINE void vf_scatter(float *const to[4], vf first, vf second) {
    const __m128 a = _mm_unpacklo_ps(vf_four(first), vf_four(second)), b = _mm_unpackhi_ps(vf_four(first), vf_four(second));
    _mm_storel_pi((__m64 *)to[0], a), _mm_storeh_pi((__m64 *)to[1], a);
    _mm_storel_pi((__m64 *)to[2], b), _mm_storeh_pi((__m64 *)to[3], b);
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
