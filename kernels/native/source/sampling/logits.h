/* What is asked of every row of logits. */
#pragma once

#include "../simd/simd.h"
#include "../simd/functions.h"

#include <math.h>
#include <stdint.h>

/* The largest of `num` numbers, of equals the first; returns its place. `finite`: whether all of them are, which must be
 * so unless the others are -infinity. */
static int32_t find_largest(const float *x, int32_t num, int *finite) {
    enum { BLOCK = 32 * LANES }; /* numbers of which only the largest is looked at first */
    const int32_t whole = num / LANES * LANES;
    float top = -INFINITY, fault = 0.0f;
    int32_t first = 0;
    vf faults[2] = {vf_zero(), vf_zero()};
    for (int32_t start = 0; start < whole; start += BLOCK) {
        const int32_t stop = start + BLOCK < whole ? start + BLOCK : whole;
        vf largest[2] = {vf_set(-INFINITY), vf_set(-INFINITY)};
        int32_t i = start;
        for (; i + 2 * LANES <= stop; i += 2 * LANES) {
            const vf a = vf_load(x + i), b = vf_load(x + i + LANES);
            largest[0] = vf_max(largest[0], a), largest[1] = vf_max(largest[1], b);
            faults[0] = vf_fma(a, vf_zero(), faults[0]); /* not 0 from the first on that is not finite */
            faults[1] = vf_fma(b, vf_zero(), faults[1]);
        }
        if (i < stop) largest[0] = vf_max(largest[0], vf_load(x + i)), faults[0] = vf_fma(vf_load(x + i), vf_zero(), faults[0]);
        const float found = vf_largest(vf_max(largest[0], largest[1]));
        if (found > top) top = found, first = start;
    }
    for (int32_t i = whole; i < num; i++) {
        if (x[i] > top) top = x[i], first = i;
        fault += x[i] * 0.0f;
    }
    *finite = fault + vf_sum(vf_add(faults[0], faults[1])) == 0.0f;
    for (int32_t i = first; i < whole; i += LANES) {
        const int lane = vf_first_equal(vf_load(x + i), vf_set(top));
        if (lane < LANES) return i + lane;
    }
    return first;
}

/* The sum of e^(x - top) of `num` numbers, none of which is more than `top`; those 87 and more below it count as 1e-38. */
static double sum_exp(const float *x, int32_t num, float top) {
    enum { BLOCK = 1024, PARTS = 16 / LANES }; /* BLOCK: numbers that are added in float32 */
    const int32_t whole = num / 16 * 16;
    double total = 0.0;
    for (int32_t start = 0; start < whole; start += BLOCK) {
        vf sums[PARTS] = {vf_zero()};
        for (int32_t i = start; i < whole && i < start + BLOCK; i += 16)
            for (int part = 0; part < PARTS; part++)
                sums[part] = vf_add(sums[part], vf_exp(vf_sub(vf_load(x + i + part * LANES), vf_set(top))));
        total += vf_sum(vf_folded(sums));
    }
    if (whole == num) return total;
    float rest[16];
    vf sums[PARTS];
    for (int32_t i = 0; i < 16; i++) rest[i] = whole + i < num ? x[whole + i] : -INFINITY;
    for (int part = 0; part < PARTS; part++) sums[part] = vf_exp(vf_sub(vf_load(rest + part * LANES), vf_set(top)));
    return total + vf_sum(vf_folded(sums));
}
