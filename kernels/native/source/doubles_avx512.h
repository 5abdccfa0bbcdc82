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
/* The lanes of `a` whose bits are set, and their places from `start` on, one after the other; writes LANES of each. */
INLINE void store_chosen(vf a, int32_t start, uint32_t bits, float *values, int32_t *places) {
    const vi lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    _mm512_storeu_ps(values, _mm512_maskz_compress_ps((__mmask16)bits, a));
    _mm512_storeu_si512(places, _mm512_maskz_compress_epi32((__mmask16)bits, _mm512_add_epi32(lane, _mm512_set1_epi32(start))));
}
