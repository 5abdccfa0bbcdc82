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

/* 2^x for x <= 128, to 4 units in the last place; at least 2^-125, as denormal numbers are slow. The polynomial is minimax. */
INLINE vf vf_exp2(vf x) {
    x = vf_max(x, vf_set(-125.0f));
    const vf r = vf_fraction(x);
    vf p = vf_set(0.0018775765784084797f);
    p = vf_fma(p, r, vf_set(0.008989340625703335f));
    p = vf_fma(p, r, vf_set(0.05582631751894951f));
    p = vf_fma(p, r, vf_set(0.24015361070632935f));
    p = vf_fma(p, r, vf_set(0.6931530833244324f));
    p = vf_fma(p, r, vf_set(0.9999999403953552f));
    return vf_scale2(p, x);
}

/* x / (1 + e^-x), the quotient by a step of Newton's, to 2^-22. */
INLINE vf vf_silu(vf x) {
    const vf y = vf_add(vf_set(1.0f), vf_exp2(vf_min(vf_mul(x, vf_set(-1.44269504f)), vf_set(125.0f))));
    const vf about = vf_inverse(y);
    return vf_mul(x, vf_mul(about, vf_sub(vf_set(2.0f), vf_mul(y, about))));
}
