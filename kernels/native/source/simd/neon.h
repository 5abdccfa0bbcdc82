/* Vectors of NEON: 8 numbers, in two registers of four. With NEON_DOT or NEON_I8MM defined, products of bytes are single
 * instructions.
 *
 * Functions do to the bit what those of avx2.h do, except where it makes no difference: which dimension is in which lane
 * after unpacking, what NaN is made of, and which whole number one becomes. */
#pragma once

#include <arm_neon.h>
#include <math.h>
#include <stdint.h>

#define LANES 8

typedef struct {
    float32x4_t low, high;
} vf;
typedef struct {
    int32x4_t low, high;
} vi;

#define INLINE static inline __attribute__((always_inline))

/* Other numbers in the same bits. */
INLINE uint32x4_t bits_of(float32x4_t a) { return vreinterpretq_u32_f32(a); }
INLINE float32x4_t of_bits(uint32x4_t a) { return vreinterpretq_f32_u32(a); }
INLINE int8x16_t bytes_of(int32x4_t a) { return vreinterpretq_s8_s32(a); }
INLINE int16x8_t words_of(int32x4_t a) { return vreinterpretq_s16_s32(a); }

/* The larger, or the smaller one; the second operand if either is NaN, unlike vmaxq_f32 and vminq_f32. */
INLINE float32x4_t larger(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
INLINE float32x4_t smaller(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }

INLINE vf vf_zero(void) { return (vf){vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)}; }
INLINE vf vf_set(float x) { return (vf){vdupq_n_f32(x), vdupq_n_f32(x)}; }
INLINE vf vf_load(const float *p) { return (vf){vld1q_f32(p), vld1q_f32(p + 4)}; }
INLINE void vf_store(float *p, vf x) { vst1q_f32(p, x.low), vst1q_f32(p + 4, x.high); }
INLINE vf vf_add(vf a, vf b) { return (vf){vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
INLINE vf vf_sub(vf a, vf b) { return (vf){vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)}; }
INLINE vf vf_mul(vf a, vf b) { return (vf){vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)}; }
INLINE vf vf_div(vf a, vf b) { return (vf){vdivq_f32(a.low, b.low), vdivq_f32(a.high, b.high)}; }
INLINE vf vf_fma(vf a, vf b, vf c) { return (vf){vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)}; }
INLINE vf vf_max(vf a, vf b) { return (vf){larger(a.low, b.low), larger(a.high, b.high)}; }
INLINE vf vf_min(vf a, vf b) { return (vf){smaller(a.low, b.low), smaller(a.high, b.high)}; }
/* The larger of two sizes, which are not negative; what is not a number is larger than all of them. */
INLINE vf vf_max_size(vf a, vf b) {
    return (vf){of_bits(vmaxq_u32(bits_of(a.low), bits_of(b.low))), of_bits(vmaxq_u32(bits_of(a.high), bits_of(b.high)))};
}
INLINE vf vf_abs(vf a) { return (vf){vabsq_f32(a.low), vabsq_f32(a.high)}; }
INLINE vf vf_round(vf a) { return (vf){vrndnq_f32(a.low), vrndnq_f32(a.high)}; }
INLINE vf vf_floor(vf a) { return (vf){vrndmq_f32(a.low), vrndmq_f32(a.high)}; }
/* Sums are of 16 lanes in all variants, added in one order: lane j and lane j + 8 first. */
INLINE vf vf_folded(const vf sums[16 / LANES]) { return vf_add(sums[0], sums[1]); }
INLINE float vf_sum(vf a) {
    const float32x4_t fours = vaddq_f32(a.low, a.high);
    const float32x2_t pairs = vadd_f32(vget_low_f32(fours), vget_high_f32(fours));
    return vget_lane_f32(pairs, 0) + vget_lane_f32(pairs, 1);
}
INLINE float vf_largest(vf a) {
    const float32x4_t fours = larger(a.low, a.high), pairs = larger(fours, vextq_f32(fours, fours, 2));
    const float first = vgetq_lane_f32(pairs, 0), second = vgetq_lane_f32(pairs, 1);
    return first > second ? first : second;
}
INLINE float vf_largest_size(vf a) {
    const uint32_t bits = vmaxvq_u32(vmaxq_u32(bits_of(a.low), bits_of(a.high)));
    float size;
    __builtin_memcpy(&size, &bits, 4);
    return size;
}
/* Bit i: all of lane i is set. */
INLINE uint32_t bits_set(uint32x4_t low, uint32x4_t high) {
    static const uint32_t bits[LANES] = {1, 2, 4, 8, 16, 32, 64, 128};
    return vaddvq_u32(vorrq_u32(vandq_u32(low, vld1q_u32(bits)), vandq_u32(high, vld1q_u32(bits + 4))));
}
INLINE int vf_all_finite(vf a) {
    const float32x4_t infinite = vdupq_n_f32(INFINITY);
    return vminvq_u32(vandq_u32(vcaltq_f32(a.low, infinite), vcaltq_f32(a.high, infinite))) != 0;
}
/* The first lane in which they are equal, or LANES. */
INLINE int vf_first_equal(vf a, vf b) {
    return __builtin_ctz(bits_set(vceqq_f32(a.low, b.low), vceqq_f32(a.high, b.high)) | 1u << LANES);
}
INLINE vf vf_fraction(vf a) { return vf_sub(a, vf_floor(a)); }
INLINE vi vi_load(const void *p) { return (vi){vld1q_s32(p), vld1q_s32((const int32_t *)p + 4)}; }
INLINE void vi_store(void *p, vi a) { vst1q_s32(p, a.low), vst1q_s32((int32_t *)p + 4, a.high); }
INLINE vi vi_set(int32_t x) { return (vi){vdupq_n_s32(x), vdupq_n_s32(x)}; }
INLINE vi vi_add(vi a, vi b) { return (vi){vaddq_s32(a.low, b.low), vaddq_s32(a.high, b.high)}; }
INLINE vf vi_float(vi a) { return (vf){vcvtq_f32_s32(a.low), vcvtq_f32_s32(a.high)}; }
INLINE vf vi_as_float(vi a) { return (vf){vreinterpretq_f32_s32(a.low), vreinterpretq_f32_s32(a.high)}; }
INLINE vi vf_int(vf a) { return (vi){vcvtnq_s32_f32(a.low), vcvtnq_s32_f32(a.high)}; }
INLINE vi vf_cut(vf a) { return (vi){vcvtq_s32_f32(a.low), vcvtq_s32_f32(a.high)}; } /* without what follows the point */
/* a * 2^floor(n); n is at least -126 */
INLINE vf vf_scale2(vf a, vf n) {
    const vi exponent = vi_add((vi){vcvtmq_s32_f32(n.low), vcvtmq_s32_f32(n.high)}, vi_set(127));
    return vf_mul(a, vi_as_float((vi){vshlq_n_s32(exponent.low, 23), vshlq_n_s32(exponent.high, 23)}));
}
/* `a` in lanes `start` .. `stop` (half open, any integers), `other` elsewhere. */
INLINE vf vf_within(vf a, int32_t start, int32_t stop, float other) {
    static const int32_t lanes[LANES] = {0, 1, 2, 3, 4, 5, 6, 7};
    const vi lane = vi_load(lanes), first = vi_set(start), end = vi_set(stop);
    const uint32x4_t low = vandq_u32(vcgeq_s32(lane.low, first.low), vcltq_s32(lane.low, end.low));
    const uint32x4_t high = vandq_u32(vcgeq_s32(lane.high, first.high), vcltq_s32(lane.high, end.high));
    return (vf){vbslq_f32(low, a.low, vdupq_n_f32(other)), vbslq_f32(high, a.high, vdupq_n_f32(other))};
}
/* A Hadamard matrix times the lanes. */
INLINE vf vf_mix(vf a) {
    static const float odd[4] = {1.0f, -1.0f, 1.0f, -1.0f}, upper[4] = {1.0f, 1.0f, -1.0f, -1.0f};
    a.low = vfmaq_f32(vrev64q_f32(a.low), a.low, vld1q_f32(odd));
    a.high = vfmaq_f32(vrev64q_f32(a.high), a.high, vld1q_f32(odd));
    a.low = vfmaq_f32(vextq_f32(a.low, a.low, 2), a.low, vld1q_f32(upper));
    a.high = vfmaq_f32(vextq_f32(a.high, a.high, 2), a.high, vld1q_f32(upper));
    return (vf){vaddq_f32(a.low, a.high), vsubq_f32(a.low, a.high)};
}
INLINE vf vf_half(const uint16_t *p) {
    const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(p));
    return (vf){vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)};
}
/* As numbers of 16 bits. */
INLINE int16x8_t vi_words(vi a) { return vcombine_s16(vqmovn_s32(a.low), vqmovn_s32(a.high)); }
INLINE void vi_store_bytes(int8_t *p, vi a) { vst1_s8(p, vqmovn_s16(vi_words(a))); }
INLINE void vi_store_codes(uint8_t *p, vi a) { vst1_u8(p, vqmovun_s16(vi_words(a))); }
INLINE void vi_store_words(int16_t *p, vi a) { vst1q_s16(p, vi_words(a)); }
INLINE int32_t vi_total(vi a) { return vaddvq_s32(vaddq_s32(a.low, a.high)); }
/* Byte `i` of each lane. */
INLINE vf vf_byte(vi a, const int i) {
    const int32x4_t right = vdupq_n_s32(-8 * i);
    const uint32x4_t low = vshlq_u32(vreinterpretq_u32_s32(a.low), right), high = vshlq_u32(vreinterpretq_u32_s32(a.high), right);
    return (vf){vcvtq_f32_u32(vandq_u32(low, vdupq_n_u32(255))), vcvtq_f32_u32(vandq_u32(high, vdupq_n_u32(255)))};
}
/* LANES bytes, widened. */
INLINE vf vf_bytes(const uint8_t *p) {
    const uint16x8_t words = vmovl_u8(vld1_u8(p));
    return (vf){vcvtq_f32_u32(vmovl_u16(vget_low_u16(words))), vcvtq_f32_u32(vmovl_high_u16(words))};
}
INLINE vf vf_signed_bytes(const uint8_t *p) {
    const int16x8_t words = vmovl_s8(vld1_s8((const int8_t *)p));
    return (vf){vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))), vcvtq_f32_s32(vmovl_high_s16(words))};
}
INLINE uint8x16_t codes_of(int32x4_t a) { return vreinterpretq_u8_s32(a); }
INLINE vi of_codes(uint8x16_t low, uint8x16_t high) { return (vi){vreinterpretq_s32_u8(low), vreinterpretq_s32_u8(high)}; }
INLINE vi vi_low_nibbles(vi a) {
    return of_codes(vandq_u8(codes_of(a.low), vdupq_n_u8(15)), vandq_u8(codes_of(a.high), vdupq_n_u8(15)));
}
INLINE vi vi_high_nibbles(vi a) { return of_codes(vshrq_n_u8(codes_of(a.low), 4), vshrq_n_u8(codes_of(a.high), 4)); }
/* Bits 2 i and 2 i + 1 of each byte of `upper` as bits 4 and 5 of `a`. */
INLINE vi vi_add_upper(vi a, vi upper, const int i) {
    const int8x16_t left = vdupq_n_s8((int8_t)(4 - 2 * i));
    const uint8x16_t low = vandq_u8(vshlq_u8(codes_of(upper.low), left), vdupq_n_u8(0x30));
    const uint8x16_t high = vandq_u8(vshlq_u8(codes_of(upper.high), left), vdupq_n_u8(0x30));
    return of_codes(vorrq_u8(codes_of(a.low), low), vorrq_u8(codes_of(a.high), high));
}

/* Four bytes, or a pair of 16 bits, in each lane. */
INLINE vi vi_four(const void *x) {
    int32_t bytes;
    __builtin_memcpy(&bytes, x, 4);
    return vi_set(bytes);
}
/* Bytes -128 .. 127 as codes 0 .. 255, and back. */
INLINE vi vi_flip(vi a) {
    return of_codes(veorq_u8(codes_of(a.low), vdupq_n_u8(0x80)), veorq_u8(codes_of(a.high), vdupq_n_u8(0x80)));
}
/* Sums of products of four signed bytes a lane, of which those of `b` are no -128. */
INLINE int32x4_t dot_four(int32x4_t sums, int32x4_t a, int32x4_t b) {
#ifdef NEON_DOT
    __asm__(".arch armv8.2-a+dotprod\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(sums) : "w"(a), "w"(b));
    return sums;
#else
    const int16x8_t low = vmull_s8(vget_low_s8(bytes_of(a)), vget_low_s8(bytes_of(b)));
    return vpadalq_s16(sums, vpaddq_s16(low, vmull_high_s8(bytes_of(a), bytes_of(b))));
#endif
}
/* Sums of products of four bytes a lane: codes 0 .. 63 by the four signed bytes at `x`, which are no -128. */
INLINE vi vi_dot_small(vi sums, vi codes, const int8_t *x) {
    const vi four = vi_four(x);
    return (vi){dot_four(sums.low, codes.low, four.low), dot_four(sums.high, codes.high, four.high)};
}
/* The same with codes 0 .. 255, of which the caller takes back DOT_OFFSET each. */
#ifdef NEON_I8MM
INLINE int32x4_t dot_codes(int32x4_t sums, int32x4_t codes, int32x4_t x) {
    __asm__(".arch armv8.2-a+dotprod+i8mm\n\tusdot %0.4s, %1.16b, %2.16b" : "+w"(sums) : "w"(codes), "w"(x));
    return sums;
}
INLINE vi vi_dot_vectors(vi sums, vi codes, vi x) {
    return (vi){dot_codes(sums.low, codes.low, x.low), dot_codes(sums.high, codes.high, x.high)};
}
#define DOT_OFFSET 128
#define BYTE_WEIGHTS 1 /* vi_dot_vectors multiplies codes as they are */
#else
INLINE vi vi_dot_vectors(vi sums, vi codes, vi x) {
    const vi whole = vi_flip(codes);
    return (vi){dot_four(sums.low, whole.low, x.low), dot_four(sums.high, whole.high, x.high)};
}
#define DOT_OFFSET 0
#define BYTE_WEIGHTS 0
#endif
INLINE vi vi_dot_bytes(vi sums, vi codes, const int8_t *x) { return vi_dot_vectors(sums, codes, vi_four(x)); }

/* Pairs of whole numbers of 16 bits: sums of their two products a lane. */
INLINE int32x4_t dot_two(int32x4_t sums, int16x8_t a, int16x8_t b) {
    return vaddq_s32(sums, vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b)));
}
INLINE vi vi_dot_pairs(vi sums, vi a, vi b) {
    return (vi){dot_two(sums.low, words_of(a.low), words_of(b.low)), dot_two(sums.high, words_of(a.high), words_of(b.high))};
}
INLINE vi vi_widen_bytes(const uint8_t *p) {
    const int8x16_t bytes = vld1q_s8((const int8_t *)p);
    return (vi){vreinterpretq_s32_s16(vmovl_s8(vget_low_s8(bytes))), vreinterpretq_s32_s16(vmovl_high_s8(bytes))};
}
/* Numbers of 16 bits of two rows, paired: the first eight of each, or the last. */
INLINE vi zip_words(int16x8_t a, int16x8_t b) {
    return (vi){vreinterpretq_s32_s16(vzip1q_s16(a, b)), vreinterpretq_s32_s16(vzip2q_s16(a, b))};
}
INLINE vi vi_unpack_low(vi a, vi b) { return zip_words(words_of(a.low), words_of(b.low)); }
INLINE vi vi_unpack_high(vi a, vi b) { return zip_words(words_of(a.high), words_of(b.high)); }
/* The same of bytes: the first sixteen, or the last. */
INLINE vi zip_bytes(int8x16_t a, int8x16_t b) {
    return (vi){vreinterpretq_s32_s8(vzip1q_s8(a, b)), vreinterpretq_s32_s8(vzip2q_s8(a, b))};
}
INLINE vi vi_unpack_low_bytes(vi a, vi b) { return zip_bytes(bytes_of(a.low), bytes_of(b.low)); }
INLINE vi vi_unpack_high_bytes(vi a, vi b) { return zip_bytes(bytes_of(a.high), bytes_of(b.high)); }
/* Unpacking leaves numbers in order here, so that there is nothing to make up for. */
INLINE vi vi_mingle_halves(vi a) { return a; }
INLINE void vf_store_packed(float *p, vf low, vf high) { vf_store(p, low), vf_store(p + LANES, high); }

/* Lanes of pairs of vectors added, in steps: sums_of_pairs, sums_of_fours, and then sums_of_lanes until a lane of the
 * result is the sum of one vector. */
INLINE vi sums_of_pairs(vi a, vi b) { return (vi){vpaddq_s32(a.low, b.low), vpaddq_s32(a.high, b.high)}; }
INLINE vi sums_of_fours(vi a, vi b) { return sums_of_pairs(a, b); }
INLINE vi sums_of_lanes(vi a, vi b) { return (vi){vaddq_s32(a.low, a.high), vaddq_s32(b.low, b.high)}; }
/* The sums of LANES vectors, in their order. */
INLINE vi sums_of_all(const vi fours[LANES / 4]) { return sums_of_lanes(fours[0], fours[1]); }

/* Lanes 0 and 1 of `b` after those of `a`, or lanes 2 and 3. */
INLINE float32x4_t first_pairs(float32x4_t a, float32x4_t b) { return vcombine_f32(vget_low_f32(a), vget_low_f32(b)); }
INLINE float32x4_t last_pairs(float32x4_t a, float32x4_t b) { return vcombine_f32(vget_high_f32(a), vget_high_f32(b)); }

/* Lane r: the sum, or the largest number, of vector r of four; the others are the same. */
INLINE float32x4_t sum_of(float32x4_t v0, float32x4_t v1, float32x4_t v2, float32x4_t v3) {
    const float32x4_t a = vaddq_f32(vzip1q_f32(v0, v1), vzip2q_f32(v0, v1)), b = vaddq_f32(vzip1q_f32(v2, v3), vzip2q_f32(v2, v3));
    return vaddq_f32(first_pairs(a, b), last_pairs(a, b));
}
INLINE vf vf_sum_of(const vf v[4]) {
    const float32x4_t sums = vaddq_f32(sum_of(v[0].low, v[1].low, v[2].low, v[3].low), sum_of(v[0].high, v[1].high, v[2].high, v[3].high));
    return (vf){sums, sums};
}
INLINE float32x4_t largest_of(float32x4_t v0, float32x4_t v1, float32x4_t v2, float32x4_t v3) {
    const float32x4_t a = larger(vzip1q_f32(v0, v1), vzip2q_f32(v0, v1)), b = larger(vzip1q_f32(v2, v3), vzip2q_f32(v2, v3));
    return larger(first_pairs(a, b), last_pairs(a, b));
}
INLINE vf vf_largest_of(const vf v[4]) {
    const float32x4_t low = largest_of(v[0].low, v[1].low, v[2].low, v[3].low);
    const float32x4_t high = largest_of(v[0].high, v[1].high, v[2].high, v[3].high);
    return (vf){larger(low, high), larger(high, low)};
}
INLINE vf vf_largest_size_of(const vf v[4]) {
    uint32x4_t largest[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) largest[i] = vmaxq_u32(bits_of(v[i].low), bits_of(v[i].high));
    const uint32x4_t all = vpmaxq_u32(vpmaxq_u32(largest[0], largest[1]), vpmaxq_u32(largest[2], largest[3]));
    return (vf){of_bits(all), of_bits(all)};
}
INLINE vi vi_sum_of(const vi v[4]) {
    const vi fours = sums_of_fours(sums_of_pairs(v[0], v[1]), sums_of_pairs(v[2], v[3]));
    return sums_of_lanes(fours, fours);
}

/* Lanes 0 .. 3 of two vectors: the first and the second number at each of four places. */
INLINE void vf_gather(float *const from[4], vf *first, vf *second) {
    const float32x4_t a = vcombine_f32(vld1_f32(from[0]), vld1_f32(from[1])), b = vcombine_f32(vld1_f32(from[2]), vld1_f32(from[3]));
    *first = (vf){vuzp1q_f32(a, b), vdupq_n_f32(0.0f)}, *second = (vf){vuzp2q_f32(a, b), vdupq_n_f32(0.0f)};
}
INLINE void vf_scatter(float *const to[4], vf first, vf second) {
    const float32x4_t a = vzip1q_f32(first.low, second.low), b = vzip2q_f32(first.low, second.low);
    vst1_f32(to[0], vget_low_f32(a)), vst1_f32(to[1], vget_high_f32(a));
    vst1_f32(to[2], vget_low_f32(b)), vst1_f32(to[3], vget_high_f32(b));
}

/* Stores lanes 0 .. 3. */
INLINE void vf_store_four(float *p, vf a) { vst1q_f32(p, a.low); }
/* True if any of four numbers is above the one at the same place. */
INLINE int any_above(const float *a, const float *b) { return vmaxvq_u32(vcgtq_f32(vld1q_f32(a), vld1q_f32(b))) != 0; }

/* Four vectors of four numbers, transposed. */
INLINE void transpose_four(int32x4_t rows[4]) {
    const int64x2_t a = vreinterpretq_s64_s32(vtrn1q_s32(rows[0], rows[1])), b = vreinterpretq_s64_s32(vtrn2q_s32(rows[0], rows[1]));
    const int64x2_t c = vreinterpretq_s64_s32(vtrn1q_s32(rows[2], rows[3])), d = vreinterpretq_s64_s32(vtrn2q_s32(rows[2], rows[3]));
    rows[0] = vreinterpretq_s32_s64(vzip1q_s64(a, c)), rows[1] = vreinterpretq_s32_s64(vzip1q_s64(b, d));
    rows[2] = vreinterpretq_s32_s64(vzip2q_s64(a, c)), rows[3] = vreinterpretq_s32_s64(vzip2q_s64(b, d));
}
/* LANES vectors, transposed. */
INLINE void transpose(vi rows[LANES]) {
    int32x4_t quarters[2][2][4]; /* of rows 4 i .., lanes 4 j .. */
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i++) quarters[i / 4][0][i % 4] = rows[i].low, quarters[i / 4][1][i % 4] = rows[i].high;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) transpose_four(quarters[i / 2][i % 2]);
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i++) rows[i] = (vi){quarters[0][i / 4][i % 4], quarters[1][i / 4][i % 4]};
}

/* Vectors of NEON of LANES / 2 numbers of 64 bits, and what of a vector is chosen by bits. */
typedef struct {
    float64x2_t low, high;
} vd;
typedef struct {
    int64x2_t low, high;
} vl;

INLINE vd vd_set(double x) { return (vd){vdupq_n_f64(x), vdupq_n_f64(x)}; }
INLINE vd vd_widen(const float *p) {
    const float32x4_t a = vld1q_f32(p);
    return (vd){vcvt_f64_f32(vget_low_f32(a)), vcvt_high_f64_f32(a)};
}
INLINE vd vd_add(vd a, vd b) { return (vd){vaddq_f64(a.low, b.low), vaddq_f64(a.high, b.high)}; }
INLINE vd vd_sub(vd a, vd b) { return (vd){vsubq_f64(a.low, b.low), vsubq_f64(a.high, b.high)}; }
INLINE vd vd_mul(vd a, vd b) { return (vd){vmulq_f64(a.low, b.low), vmulq_f64(a.high, b.high)}; }
INLINE vd vd_fma(vd a, vd b, vd c) { return (vd){vfmaq_f64(c.low, a.low, b.low), vfmaq_f64(c.high, a.high, b.high)}; }
INLINE vd vd_max(vd a, vd b) {
    return (vd){vbslq_f64(vcgtq_f64(a.low, b.low), a.low, b.low), vbslq_f64(vcgtq_f64(a.high, b.high), a.high, b.high)};
}
INLINE vl vl_zero(void) { return (vl){vdupq_n_s64(0), vdupq_n_s64(0)}; }
INLINE vl vl_add(vl a, vl b) { return (vl){vaddq_s64(a.low, b.low), vaddq_s64(a.high, b.high)}; }
INLINE int64_t vl_sum(vl a) { return vaddvq_s64(vaddq_s64(a.low, a.high)); }
INLINE void vl_store(int64_t *p, vl a) { vst1q_s64(p, a.low), vst1q_s64(p + 2, a.high); }
/* The numbers of 0 .. 2^51 without their fractions. */
INLINE vl vd_whole(vd a) { return (vl){vcvtq_s64_f64(a.low), vcvtq_s64_f64(a.high)}; }
/* The number whose bits are those of `table`, at the lowest 4 bits of each of `a`, and of `a` in the highest 16, added. */
INLINE float64x2_t look_up(const int64_t table[16], float64x2_t a) {
    const int64x2_t bits = vreinterpretq_s64_f64(a);
    const int64x1_t first = vld1_s64(table + (vgetq_lane_s64(bits, 0) & 15)), second = vld1_s64(table + (vgetq_lane_s64(bits, 1) & 15));
    return vreinterpretq_f64_s64(vaddq_s64(vcombine_s64(first, second), vshlq_n_s64(bits, 48)));
}
INLINE vd vd_lookup(const int64_t table[16], vd a) { return (vd){look_up(table, a.low), look_up(table, a.high)}; }

/* Bit i: lane i of `a` is at least that of `b`. */
INLINE uint32_t vf_at_least(vf a, vf b) { return bits_set(vcgeq_f32(a.low, b.low), vcgeq_f32(a.high, b.high)); }
/* `a` in the lanes whose bits are set, -infinity elsewhere. */
INLINE vf vf_allowed(vf a, uint32_t bits) {
    static const uint32_t lanes[LANES] = {1, 2, 4, 8, 16, 32, 64, 128};
    const uint32x4_t all = vdupq_n_u32(bits), low = vtstq_u32(all, vld1q_u32(lanes)), high = vtstq_u32(all, vld1q_u32(lanes + 4));
    return (vf){vbslq_f32(low, a.low, vdupq_n_f32(-INFINITY)), vbslq_f32(high, a.high, vdupq_n_f32(-INFINITY))};
}
