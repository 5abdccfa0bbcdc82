/* Vectors of AVX-512 with VNNI: 16 numbers. */
#pragma once

#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#define LANES 16

typedef __m512 vf;
typedef __m512i vi;

#define INLINE static inline __attribute__((always_inline))

INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
INLINE vf vf_set(float x) { return _mm512_set1_ps(x); }
INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
/* The larger of two sizes, which are not negative; what is not a number is larger than all of them. */
INLINE vf vf_max_size(vf a, vf b) { return _mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(a), _mm512_castps_si512(b))); }
INLINE vf vf_abs(vf a) { return _mm512_abs_ps(a); }
INLINE vf vf_round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* Sums are of 16 lanes in all variants, added in one order: lane j and lane j + 8 first. */
INLINE vf vf_folded(const vf sums[16 / LANES]) { return sums[0]; }
INLINE float vf_sum(vf a) {
    const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
INLINE float vf_largest(vf a) { return _mm512_reduce_max_ps(a); }
INLINE float vf_largest_size(vf a) {
    const uint32_t bits = _mm512_reduce_max_epu32(_mm512_castps_si512(a));
    float size;
    __builtin_memcpy(&size, &bits, 4);
    return size;
}
INLINE int vf_all_finite(vf a) { return _mm512_cmp_ps_mask(vf_abs(a), vf_set(INFINITY), _CMP_LT_OQ) == 0xffff; }
/* The first lane in which they are equal, or LANES. */
INLINE int vf_first_equal(vf a, vf b) { return __builtin_ctz(_mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ) | 1 << LANES); }
/* Not _mm512_reduce_ps, which also rounds the difference down. */
INLINE vf vf_fraction(vf a) { return vf_sub(a, _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)); }
INLINE vf vf_scale2(vf a, vf n) { return _mm512_scalef_ps(a, n); } /* a * 2^floor(n) */
/* `a` in lanes `start` .. `stop` (half open, any integers), `other` elsewhere. */
INLINE vf vf_within(vf a, int32_t start, int32_t stop, float other) {
    const vi lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __mmask16 in = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(start)) &
                         _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(stop));
    return _mm512_mask_blend_ps(in, _mm512_set1_ps(other), a);
}
/* 1, and -1 in the lanes of `negative`. */
INLINE vf vf_signs(const int negative) { return _mm512_mask_blend_ps((__mmask16)negative, vf_set(1.0f), vf_set(-1.0f)); }
/* A Hadamard matrix times the lanes. */
INLINE vf vf_mix(vf a) {
    a = vf_fma(a, vf_signs(0xaaaa), _mm512_permute_ps(a, 0xb1));
    a = vf_fma(a, vf_signs(0xcccc), _mm512_permute_ps(a, 0x4e));
    a = vf_fma(a, vf_signs(0xf0f0), _mm512_shuffle_f32x4(a, a, 0xb1));
    return vf_fma(a, vf_signs(0xff00), _mm512_shuffle_f32x4(a, a, 0x4e));
}
INLINE vf vf_half(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INLINE vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
INLINE vi vi_set(int32_t x) { return _mm512_set1_epi32(x); }
INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
INLINE vf vi_float(vi a) { return _mm512_cvtepi32_ps(a); }
INLINE vf vi_as_float(vi a) { return _mm512_castsi512_ps(a); }
INLINE vi vf_int(vf a) { return _mm512_cvtps_epi32(a); }
INLINE vi vf_cut(vf a) { return _mm512_cvttps_epi32(a); } /* without what follows the point */
INLINE void vi_store_bytes(int8_t *p, vi a) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a)); }
INLINE void vi_store_codes(uint8_t *p, vi a) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a)); }
INLINE void vi_store_words(int16_t *p, vi a) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(a)); }
INLINE void vi_store(void *p, vi a) { _mm512_storeu_si512(p, a); }
INLINE int32_t vi_total(vi a) { return _mm512_reduce_add_epi32(a); }
/* Byte `i` of each lane. */
INLINE vf vf_byte(vi a, const int i) { return vi_float(_mm512_and_si512(_mm512_srli_epi32(a, 8 * i), vi_set(255))); }
/* LANES bytes, widened. */
INLINE vf vf_bytes(const uint8_t *p) { return vi_float(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p))); }
INLINE vf vf_signed_bytes(const uint8_t *p) { return vi_float(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p))); }
INLINE vi vi_low_nibbles(vi a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
INLINE vi vi_high_nibbles(vi a) { return vi_low_nibbles(_mm512_srli_epi16(a, 4)); }
/* Bits 2 i and 2 i + 1 of each byte of `upper` as bits 4 and 5 of `a`. */
INLINE vi vi_add_upper(vi a, vi upper, const int i) {
    const vi moved = i < 2 ? _mm512_slli_epi16(upper, 4 - 2 * i) : _mm512_srli_epi16(upper, 2 * i - 4);
    return _mm512_or_si512(a, _mm512_and_si512(moved, _mm512_set1_epi8(0x30)));
}

/* Sums of products of four bytes a lane: codes 0 .. 255 by the four signed bytes at `x`. */
INLINE vi vi_dot_bytes(vi sums, vi codes, const int8_t *x) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(codes), "m"(*(const int32_t *)x));
    return sums;
}
INLINE vi vi_dot_small(vi sums, vi codes, const int8_t *x) { return vi_dot_bytes(sums, codes, x); }
/* The same of bytes in vectors. */
INLINE vi vi_dot_vectors(vi sums, vi codes, vi x) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(codes), "v"(x));
    return sums;
}
#define DOT_OFFSET 128 /* what the caller of vi_dot_bytes takes back of each code */
#define BYTE_WEIGHTS 1 /* vi_dot_vectors multiplies codes as they are */
/* Bytes -128 .. 127 as such codes. */
INLINE vi vi_flip(vi a) { return _mm512_xor_si512(a, _mm512_set1_epi8((char)0x80)); }
/* Four bytes, or a pair of 16 bits, in each lane. */
INLINE vi vi_four(const void *p) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
}

/* Pairs of whole numbers of 16 bits: sums of their two products a lane. */
INLINE vi vi_dot_pairs(vi sums, vi a, vi b) {
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sums) : "v"(a), "v"(b));
    return sums;
}
INLINE vi vi_widen_bytes(const uint8_t *p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p)); }
/* Numbers of 16 bits of two rows, paired: of every eight the first four, or the last. */
INLINE vi vi_unpack_low(vi a, vi b) { return _mm512_unpacklo_epi16(a, b); }
INLINE vi vi_unpack_high(vi a, vi b) { return _mm512_unpackhi_epi16(a, b); }
/* The same of bytes: of every sixteen the first eight, or the last. */
INLINE vi vi_unpack_low_bytes(vi a, vi b) { return _mm512_unpacklo_epi8(a, b); }
INLINE vi vi_unpack_high_bytes(vi a, vi b) { return _mm512_unpackhi_epi8(a, b); }
/* Eights of bytes of the first half and the second in turn. */
INLINE vi vi_mingle_halves(vi a) { return _mm512_permutexvar_epi64(_mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0), a); }
/* 2 LANES numbers that came apart so, in order. */
INLINE void vf_store_packed(float *p, vf low, vf high) {
    const vf first = _mm512_shuffle_f32x4(low, high, 0x44), second = _mm512_shuffle_f32x4(low, high, 0xee);
    _mm512_storeu_ps(p, _mm512_shuffle_f32x4(first, first, 0xd8));
    _mm512_storeu_ps(p + LANES, _mm512_shuffle_f32x4(second, second, 0xd8));
}

/* Lanes of pairs of vectors added, in steps: sums_of_pairs, sums_of_fours, and then sums_of_lanes until a lane of the
 * result is the sum of one vector. */
INLINE vi sums_of_pairs(vi a, vi b) { return vi_add(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b)); }
INLINE vi sums_of_fours(vi a, vi b) { return vi_add(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b)); }
INLINE vi sums_of_lanes(vi a, vi b) { return vi_add(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd)); }
/* The sums of LANES vectors, in their order. */
INLINE vi sums_of_all(const vi fours[LANES / 4]) {
    return sums_of_lanes(sums_of_lanes(fours[0], fours[1]), sums_of_lanes(fours[2], fours[3]));
}

/* Lane r: the sum, or the largest number, of vector r of four. */
INLINE vf vf_sum_of(const vf v[4]) {
    const vf a = vf_add(_mm512_shuffle_f32x4(v[0], v[1], 0x44), _mm512_shuffle_f32x4(v[0], v[1], 0xee));
    const vf b = vf_add(_mm512_shuffle_f32x4(v[2], v[3], 0x44), _mm512_shuffle_f32x4(v[2], v[3], 0xee));
    const vf c = vf_add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const vf d = vf_add(c, _mm512_permute_ps(c, 0x4e));
    const vf e = vf_add(d, _mm512_shuffle_f32x4(d, d, 0xb1)); /* quarters 0 and 1: vectors 0 and 2; 2 and 3: 1 and 3 */
    return _mm512_unpacklo_ps(e, _mm512_shuffle_f32x4(e, e, 0x4e));
}
INLINE vf vf_largest_of(const vf v[4]) {
    const vf a = vf_max(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
    const vf b = vf_max(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
    const vf c = vf_max(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    const vf d = vf_max(c, _mm512_shuffle_f32x4(c, c, 0xb1));
    return vf_max(d, _mm512_shuffle_f32x4(d, d, 0x4e));
}
INLINE vf vf_largest_size_of(const vf v[4]) {
    const vf a = vf_max_size(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
    const vf b = vf_max_size(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
    const vf c = vf_max_size(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
    const vf d = vf_max_size(c, _mm512_shuffle_f32x4(c, c, 0xb1));
    return vf_max_size(d, _mm512_shuffle_f32x4(d, d, 0x4e));
}
INLINE vi vi_sum_of(const vi v[4]) {
    const vi c = sums_of_fours(sums_of_pairs(v[0], v[1]), sums_of_pairs(v[2], v[3]));
    const vi d = vi_add(c, _mm512_shuffle_i32x4(c, c, 0xb1));
    return vi_add(d, _mm512_shuffle_i32x4(d, d, 0x4e));
}

/* The first four lanes. */
INLINE vf vf_from_four(__m128 a) { return _mm512_zextps128_ps512(a); }
INLINE __m128 vf_four(vf a) { return _mm512_castps512_ps128(a); }

/* LANES vectors, transposed. */
INLINE void transpose(vi rows[LANES]) {
    vi t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        rows[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        rows[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        rows[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        rows[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        rows[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
        rows[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
        rows[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
        rows[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
    }
}

/* Vectors of AVX-512 of LANES / 2 numbers of 64 bits, and what of a vector is chosen by bits. */
typedef __m512d vd;
typedef __m512i vl;

INLINE vd vd_set(double x) { return _mm512_set1_pd(x); }
INLINE vd vd_widen(const float *p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
INLINE vd vd_add(vd a, vd b) { return _mm512_add_pd(a, b); }
INLINE vd vd_sub(vd a, vd b) { return _mm512_sub_pd(a, b); }
INLINE vd vd_mul(vd a, vd b) { return _mm512_mul_pd(a, b); }
INLINE vd vd_fma(vd a, vd b, vd c) { return _mm512_fmadd_pd(a, b, c); }
INLINE vd vd_max(vd a, vd b) { return _mm512_max_pd(a, b); }
INLINE vl vl_zero(void) { return _mm512_setzero_si512(); }
INLINE vl vl_add(vl a, vl b) { return _mm512_add_epi64(a, b); }
INLINE int64_t vl_sum(vl a) { return _mm512_reduce_add_epi64(a); }
INLINE void vl_store(int64_t *p, vl a) { _mm512_storeu_si512(p, a); }
/* The numbers of 0 .. 2^51 without their fractions. */
INLINE vl vd_whole(vd a) { return _mm512_cvttpd_epi64(a); }
/* The number whose bits are those of `table`, at the lowest 4 bits of each of `a`, and of `a` in the highest 16, added. */
INLINE vd vd_lookup(const int64_t table[16], vd a) {
    const vl bits = _mm512_castpd_si512(a);
    const vl entry = _mm512_permutex2var_epi64(_mm512_loadu_si512(table), bits, _mm512_loadu_si512(table + 8));
    return _mm512_castsi512_pd(_mm512_add_epi64(entry, _mm512_slli_epi64(bits, 48)));
}

/* Bit i: lane i of `a` is at least that of `b`. */
INLINE uint32_t vf_at_least(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
/* `a` in the lanes whose bits are set, -infinity elsewhere. */
INLINE vf vf_allowed(vf a, uint32_t bits) { return _mm512_mask_blend_ps((__mmask16)bits, _mm512_set1_ps(-INFINITY), a); }
#define STORES_CHOSEN /* else functions.h does */
/* The lanes of `a` whose bits are set, and their places from `start` on, one after the other; writes LANES of each. */
INLINE void store_chosen(vf a, int32_t start, uint32_t bits, float *values, int32_t *places) {
    const vi lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    _mm512_storeu_ps(values, _mm512_maskz_compress_ps((__mmask16)bits, a));
    _mm512_storeu_si512(places, _mm512_maskz_compress_epi32((__mmask16)bits, _mm512_add_epi32(lane, _mm512_set1_epi32(start))));
}
