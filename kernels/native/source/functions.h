/* Functions of vectors. */
#include <math.h>

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

/* 2^x for x <= 0, to 2 units in the last place; at least 2^-126, as smaller numbers are slow. The polynomial is Taylor's. */
INLINE vf vf_exp2(vf x) {
    x = vf_max(x, vf_set(-126.0f));
    const vf n = vf_round(x), r = vf_sub(x, n);
    vf p = vf_set(1.540353039e-4f);
    p = vf_fma(p, r, vf_set(1.333355815e-3f));
    p = vf_fma(p, r, vf_set(9.618129108e-3f));
    p = vf_fma(p, r, vf_set(5.550410866e-2f));
    p = vf_fma(p, r, vf_set(2.402265070e-1f));
    p = vf_fma(p, r, vf_set(6.931471806e-1f));
    p = vf_fma(p, r, vf_set(1.0f));
    return vf_scale2(p, n);
}

/* x / (1 + e^-x) */
INLINE vf vf_silu(vf x) {
    return vf_div(x, vf_add(vf_set(1.0f), vf_exp(vf_min(vf_sub(vf_zero(), x), vf_set(88.0f)))));
}
