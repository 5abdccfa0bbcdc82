/* Four numbers in vectors of AVX2 or AVX-512. */
#pragma once

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
/* Stores lanes 0 .. 3. */
INLINE void vf_store_four(float *p, vf a) { _mm_storeu_ps(p, vf_four(a)); }
/* True if any of four numbers is above the one at the same place. */
INLINE int any_above(const float *a, const float *b) { return _mm_movemask_ps(_mm_cmpgt_ps(_mm_loadu_ps(a), _mm_loadu_ps(b))) != 0; }
