/* Vectors of AVX2: 8 numbers. With AVX_VNNI defined, products of bytes are single instructions. */
#pragma once

#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#define LANES 8

typedef __m256 vf;
typedef __m256i vi;

#define INLINE static inline __attribute__((always_inline))

INLINE vf vf_zero(void) { return _mm256_setzero_ps(); }
INLINE vf vf_set(float x) { return _mm256_set1_ps(x); }
INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
INLINE vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
INLINE vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
INLINE vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
/* The larger of two sizes, which are not negative; what is not a number is larger than all of them. */
INLINE vf vf_max_size(vf a, vf b) { return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(a), _mm256_castps_si256(b))); }
INLINE vf vf_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
INLINE vf vf_round(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* Sums are of 16 lanes in all variants, added in one order: lane j and lane j + 8 first. */
INLINE vf vf_folded(const vf sums[16 / LANES]) { return vf_add(sums[0], sums[1]); }
INLINE float vf_sum(vf a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
INLINE float vf_largest(vf a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
INLINE float vf_largest_size(vf a) {
    __m128i x = _mm256_castsi256_si128(_mm256_castps_si256(a));
    x = _mm_max_epu32(x, _mm256_extracti128_si256(_mm256_castps_si256(a), 1));
    x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epu32(x, _mm_shuffle_epi32(x, 0xb1))));
}
INLINE int vf_all_finite(vf a) { return _mm256_movemask_ps(_mm256_cmp_ps(vf_abs(a), vf_set(INFINITY), _CMP_LT_OQ)) == 0xff; }
/* The first lane in which they are equal, or LANES. */
INLINE int vf_first_equal(vf a, vf b) {
    return __builtin_ctz((unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)) | 1u << LANES);
}
INLINE vf vf_fraction(vf a) { return _mm256_sub_ps(a, _mm256_floor_ps(a)); }
/* a * 2^floor(n); n is at least -126 */
INLINE vf vf_scale2(vf a, vf n) {
    const vi exponent = _mm256_add_epi32(_mm256_cvtps_epi32(_mm256_floor_ps(n)), _mm256_set1_epi32(127));
    return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
/* `a` in lanes `start` .. `stop` (half open, any integers), `other` elsewhere. */
INLINE vf vf_within(vf a, int32_t start, int32_t stop, float other) {
    const vi lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    const vi before = _mm256_cmpgt_epi32(_mm256_set1_epi32(start), lane), in = _mm256_cmpgt_epi32(_mm256_set1_epi32(stop), lane);
    return _mm256_blendv_ps(_mm256_set1_ps(other), a, _mm256_castsi256_ps(_mm256_andnot_si256(before, in)));
}
/* A Hadamard matrix times the lanes. */
INLINE vf vf_mix(vf a) {
    const vf plus = vf_set(1.0f), minus = vf_set(-1.0f);
    a = vf_fma(a, _mm256_blend_ps(plus, minus, 0xaa), _mm256_permute_ps(a, 0xb1));
    a = vf_fma(a, _mm256_blend_ps(plus, minus, 0xcc), _mm256_permute_ps(a, 0x4e));
    return vf_fma(a, _mm256_blend_ps(plus, minus, 0xf0), _mm256_permute2f128_ps(a, a, 1));
}
INLINE vf vf_half(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
INLINE vi vi_load(const void *p) { return _mm256_loadu_si256((const vi *)p); }
INLINE vi vi_set(int32_t x) { return _mm256_set1_epi32(x); }
INLINE vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
INLINE vf vi_float(vi a) { return _mm256_cvtepi32_ps(a); }
INLINE vf vi_as_float(vi a) { return _mm256_castsi256_ps(a); }
INLINE vi vf_int(vf a) { return _mm256_cvtps_epi32(a); }
INLINE vi vf_cut(vf a) { return _mm256_cvttps_epi32(a); } /* without what follows the point */
INLINE void vi_store_bytes(int8_t *p, vi a) {
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(words, words));
}
INLINE void vi_store_codes(uint8_t *p, vi a) {
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(words, words));
}
INLINE void vi_store_words(int16_t *p, vi a) {
    _mm_storeu_si128((__m128i *)p, _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1)));
}
INLINE void vi_store(void *p, vi a) { _mm256_storeu_si256((vi *)p, a); }
INLINE int32_t vi_total(vi a) {
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    x = _mm_hadd_epi32(x, x);
    return _mm_cvtsi128_si32(_mm_hadd_epi32(x, x));
}
/* Byte `i` of each lane. */
INLINE vf vf_byte(vi a, const int i) { return vi_float(_mm256_and_si256(_mm256_srli_epi32(a, 8 * i), vi_set(255))); }
/* LANES bytes, widened. */
INLINE vf vf_bytes(const uint8_t *p) { return vi_float(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p))); }
INLINE vf vf_signed_bytes(const uint8_t *p) { return vi_float(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))); }
INLINE vi vi_low_nibbles(vi a) { return _mm256_and_si256(a, _mm256_set1_epi8(15)); }
INLINE vi vi_high_nibbles(vi a) { return vi_low_nibbles(_mm256_srli_epi16(a, 4)); }
/* Bits 2 i and 2 i + 1 of each byte of `upper` as bits 4 and 5 of `a`. */
INLINE vi vi_add_upper(vi a, vi upper, const int i) {
    const vi moved = i < 2 ? _mm256_slli_epi16(upper, 4 - 2 * i) : _mm256_srli_epi16(upper, 2 * i - 4);
    return _mm256_or_si256(a, _mm256_and_si256(moved, _mm256_set1_epi8(0x30)));
}

/* Four bytes, or a pair of 16 bits, in each lane. */
INLINE vi vi_four(const void *x) {
    int32_t bytes;
    __builtin_memcpy(&bytes, x, 4);
    return _mm256_set1_epi32(bytes);
}
/* Bytes -128 .. 127 as codes 0 .. 255, and back. */
INLINE vi vi_flip(vi a) { return _mm256_xor_si256(a, _mm256_set1_epi8((char)0x80)); }
/* Sums of products of four bytes a lane: codes 0 .. 63 by the four signed bytes at `x`, which are no -128. */
INLINE vi vi_dot_small(vi sums, vi codes, const int8_t *x) {
#ifdef AVX_VNNI
    return VNNI_256(sums, codes, vi_four(x));
#else
    const vi pairs = _mm256_maddubs_epi16(codes, vi_four(x));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}
/* The same with codes 0 .. 255, of which the caller takes back DOT_OFFSET each. */
INLINE vi vi_dot_vectors(vi sums, vi codes, vi x) {
#ifdef AVX_VNNI
    return VNNI_256(sums, codes, x);
#else
    const vi whole = vi_flip(codes);
    const vi pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(whole), _mm256_sign_epi8(x, whole));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
}
INLINE vi vi_dot_bytes(vi sums, vi codes, const int8_t *x) { return vi_dot_vectors(sums, codes, vi_four(x)); }
#ifdef AVX_VNNI
#define DOT_OFFSET 128
#define BYTE_WEIGHTS 1 /* vi_dot_vectors multiplies codes as they are */
#else
#define DOT_OFFSET 0
#define BYTE_WEIGHTS 0
#endif

/* Pairs of whole numbers of 16 bits: sums of their two products a lane. */
INLINE vi vi_dot_pairs(vi sums, vi a, vi b) { return _mm256_add_epi32(sums, _mm256_madd_epi16(a, b)); }
INLINE vi vi_widen_bytes(const uint8_t *p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)); }
/* Numbers of 16 bits of two rows, paired: of every eight the first four, or the last. */
INLINE vi vi_unpack_low(vi a, vi b) { return _mm256_unpacklo_epi16(a, b); }
INLINE vi vi_unpack_high(vi a, vi b) { return _mm256_unpackhi_epi16(a, b); }
/* The same of bytes: of every sixteen the first eight, or the last. */
INLINE vi vi_unpack_low_bytes(vi a, vi b) { return _mm256_unpacklo_epi8(a, b); }
INLINE vi vi_unpack_high_bytes(vi a, vi b) { return _mm256_unpackhi_epi8(a, b); }
/* Eights of bytes of the first half and the second in turn. */
INLINE vi vi_mingle_halves(vi a) { return _mm256_permute4x64_epi64(a, 0xd8); }
/* 2 LANES numbers that came apart so, in order. */
INLINE void vf_store_packed(float *p, vf low, vf high) {
    _mm256_storeu_ps(p, _mm256_permute2f128_ps(low, high, 0x20));
    _mm256_storeu_ps(p + LANES, _mm256_permute2f128_ps(low, high, 0x31));
}

/* Lanes of pairs of vectors added, in steps: sums_of_pairs, sums_of_fours, and then sums_of_lanes until a lane of the
 * result is the sum of one vector. */
INLINE vi sums_of_pairs(vi a, vi b) { return vi_add(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)); }
INLINE vi sums_of_fours(vi a, vi b) { return vi_add(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b)); }
INLINE vi sums_of_lanes(vi a, vi b) { return vi_add(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31)); }
/* The sums of LANES vectors, in their order. */
INLINE vi sums_of_all(const vi fours[LANES / 4]) { return sums_of_lanes(fours[0], fours[1]); }

/* Lane r: the sum, or the largest number, of vector r of four. */
INLINE vf vf_sum_of(const vf v[4]) {
    const vf a = vf_add(_mm256_unpacklo_ps(v[0], v[1]), _mm256_unpackhi_ps(v[0], v[1]));
    const vf b = vf_add(_mm256_unpacklo_ps(v[2], v[3]), _mm256_unpackhi_ps(v[2], v[3]));
    const vf c = vf_add(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    return vf_add(c, _mm256_permute2f128_ps(c, c, 0x01));
}
INLINE vf vf_largest_of(const vf v[4]) {
    const vf a = vf_max(_mm256_unpacklo_ps(v[0], v[1]), _mm256_unpackhi_ps(v[0], v[1]));
    const vf b = vf_max(_mm256_unpacklo_ps(v[2], v[3]), _mm256_unpackhi_ps(v[2], v[3]));
    const vf c = vf_max(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    return vf_max(c, _mm256_permute2f128_ps(c, c, 0x01));
}
INLINE vf vf_largest_size_of(const vf v[4]) {
    const vf a = vf_max_size(_mm256_unpacklo_ps(v[0], v[1]), _mm256_unpackhi_ps(v[0], v[1]));
    const vf b = vf_max_size(_mm256_unpacklo_ps(v[2], v[3]), _mm256_unpackhi_ps(v[2], v[3]));
    const vf c = vf_max_size(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    return vf_max_size(c, _mm256_permute2f128_ps(c, c, 0x01));
}
INLINE vi vi_sum_of(const vi v[4]) {
    const vi c = sums_of_fours(sums_of_pairs(v[0], v[1]), sums_of_pairs(v[2], v[3]));
    return vi_add(c, _mm256_permute2x128_si256(c, c, 0x01));
}

/* The first four lanes. */
INLINE vf vf_from_four(__m128 a) { return _mm256_zextps128_ps256(a); }
INLINE __m128 vf_four(vf a) { return _mm256_castps256_ps128(a); }

/* LANES vectors, transposed. */
INLINE void transpose(vi rows[LANES]) {
    vi t[8], u[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        u[4 * i] = _mm256_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 1] = _mm256_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        u[4 * i + 2] = _mm256_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        u[4 * i + 3] = _mm256_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        rows[i] = _mm256_permute2x128_si256(u[i], u[4 + i], 0x20);
        rows[4 + i] = _mm256_permute2x128_si256(u[i], u[4 + i], 0x31);
    }
}

/* Vectors of AVX2 of LANES / 2 numbers of 64 bits, and what of a vector is chosen by bits. */
typedef __m256d vd;
typedef __m256i vl;

INLINE vd vd_set(double x) { return _mm256_set1_pd(x); }
INLINE vd vd_widen(const float *p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
INLINE vd vd_add(vd a, vd b) { return _mm256_add_pd(a, b); }
INLINE vd vd_sub(vd a, vd b) { return _mm256_sub_pd(a, b); }
INLINE vd vd_mul(vd a, vd b) { return _mm256_mul_pd(a, b); }
INLINE vd vd_fma(vd a, vd b, vd c) { return _mm256_fmadd_pd(a, b, c); }
INLINE vd vd_max(vd a, vd b) { return _mm256_max_pd(a, b); }
INLINE vl vl_zero(void) { return _mm256_setzero_si256(); }
INLINE vl vl_add(vl a, vl b) { return _mm256_add_epi64(a, b); }
INLINE int64_t vl_sum(vl a) {
    const __m128i x = _mm_add_epi64(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    return _mm_cvtsi128_si64(x) + _mm_extract_epi64(x, 1);
}
INLINE void vl_store(int64_t *p, vl a) { _mm256_storeu_si256((vl *)p, a); }
/* The numbers of 0 .. 2^51 without their fractions. */
INLINE vl vd_whole(vd a) {
    const vd unit = vd_set(0x1p52); /* its last bit is 1 */
    return _mm256_xor_si256(_mm256_castpd_si256(vd_add(_mm256_floor_pd(a), unit)), _mm256_castpd_si256(unit));
}
/* The number whose bits are those of `table`, at the lowest 4 bits of each of `a`, and of `a` in the highest 16, added. */
INLINE vd vd_lookup(const int64_t table[16], vd a) {
    const vl bits = _mm256_castpd_si256(a), place = _mm256_and_si256(bits, _mm256_set1_epi64x(15));
    const vl entry = _mm256_i64gather_epi64((const long long *)table, place, 8);
    return _mm256_castsi256_pd(_mm256_add_epi64(entry, _mm256_slli_epi64(bits, 48)));
}

/* Bit i: lane i of `a` is at least that of `b`. */
INLINE uint32_t vf_at_least(vf a, vf b) { return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)); }
/* `a` in the lanes whose bits are set, -infinity elsewhere. */
INLINE vf vf_allowed(vf a, uint32_t bits) {
    const vi lane = _mm256_set_epi32(128, 64, 32, 16, 8, 4, 2, 1);
    const vi set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int32_t)bits), lane), lane);
    return _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), a, _mm256_castsi256_ps(set));
}
