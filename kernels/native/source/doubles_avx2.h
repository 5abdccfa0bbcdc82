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
/* The lanes of `a` whose bits are set, and their places from `start` on, one after the other; writes LANES of each. */
INLINE void store_chosen(vf a, int32_t start, uint32_t bits, float *values, int32_t *places) {
    float all[LANES];
    vf_store(all, a);
    for (int32_t i = 0; bits; bits &= bits - 1, i++) {
        const int32_t lane = __builtin_ctz(bits);
        values[i] = all[lane], places[i] = start + lane;
    }
}
