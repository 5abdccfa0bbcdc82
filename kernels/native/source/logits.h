/* What is asked of every row of logits. */

/* The largest of `num` numbers, of equals the first; returns its place, or -1 if they are not all finite. */
static int32_t find_peak(const float *x, int32_t num) {
    const int32_t whole = num / LANES * LANES;
    vf largest = vf_set(-INFINITY), faults = vf_zero();
    for (int32_t i = 0; i < whole; i += LANES) {
        largest = vf_max(largest, vf_load(x + i));
        faults = vf_fma(vf_load(x + i), vf_zero(), faults); /* not 0 from the first on that is not finite */
    }
    float top = whole ? vf_largest(largest) : -INFINITY, fault = vf_sum(faults);
    for (int32_t i = whole; i < num; i++) top = fmaxf(top, x[i]), fault += x[i] * 0.0f;
    if (fault != 0.0f) return -1;
    for (int32_t i = 0; i < whole; i += LANES) {
        const int lane = vf_first_equal(vf_load(x + i), vf_set(top));
        if (lane < LANES) return i + lane;
    }
    for (int32_t i = whole; i < num; i++)
        if (x[i] == top) return i;
    return -1;
}

/* The sum of e^(x - top) of `num` numbers, none of which is more than `top`. */
static double sum_exp(const float *x, int32_t num, float top) {
    enum { BLOCK = 64 * LANES }; /* numbers that are added in float32 */
    double total = 0.0;
    int32_t start = 0;
    for (; start + LANES <= num; start += BLOCK) {
        vf sum = vf_zero();
        for (int32_t i = start; i + LANES <= num && i < start + BLOCK; i += LANES) sum = vf_add(sum, vf_exp(vf_sub(vf_load(x + i), vf_set(top))));
        total += vf_sum(sum);
    }
    for (int32_t i = num / LANES * LANES; i < num; i++) total += exp((double)x[i] - top);
    return total;
}
