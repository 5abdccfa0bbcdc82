/* Which of many logits matter, without putting them into order. */
#pragma once

#include "../simd/functions.h"
#include "logits.h"
#include "weigh.h"

#include <math.h>
#include <stdint.h>

/* What a thread chooses among `num` numbers with; all arrays have room for LANES more. */
typedef struct {
    int64_t *weights, *masses;
    float *values, *maxima, *line;
    int32_t *places, *tokens;
    uint32_t *keys;
} choice;

INLINE int64_t choice_room(int32_t num) { return (num + 127) / 64 * 64; }
INLINE int64_t choice_bytes(int32_t num) { return choice_room(num) * 40; }

INLINE choice choice_at(uint8_t *memory, int32_t num) {
    const int64_t room = choice_room(num);
    choice c;
    c.weights = (int64_t *)memory, c.masses = c.weights + room;
    c.values = (float *)(c.masses + room), c.maxima = c.values + room, c.line = c.maxima + room;
    c.places = (int32_t *)(c.line + room), c.tokens = c.places + room, c.keys = (uint32_t *)(c.tokens + room);
    return c;
}

/* Whole numbers in the order of the numbers; 0 and -0 are the same. */
INLINE uint32_t key_of(float x) {
    uint32_t bits;
    x += 0.0f;
    __builtin_memcpy(&bits, &x, 4);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
INLINE float of_key(uint32_t key) {
    const uint32_t bits = key >> 31 ? key ^ 0x80000000u : ~key;
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}

/* The number at which the masses of the largest of `values` reach `goal`, which all together do; `above`: the mass of those
 * above it. Without `weights` each counts once. */
static float find_cut(const float *values, const int64_t *weights, int32_t num, int64_t goal, int64_t *above, choice *c) {
    uint32_t low = UINT32_MAX, top = 0, *keys = c->keys;
    int64_t *masses = c->masses;
    for (int32_t i = 0; i < num; i++) {
        const uint32_t key = key_of(values[i]);
        low = key < low ? key : low, top = key > top ? key : top;
        keys[i] = key, masses[i] = weights ? weights[i] : 1;
    }
    *above = 0;
    for (int bits = top > low ? 32 - __builtin_clz(top - low) : 0; bits;) { /* what is left is less than 2^bits below top */
        const int shift = bits > 8 ? bits - 8 : 0;
        int64_t sums[256] = {0};
        for (int32_t i = 0; i < num; i++) sums[(top - keys[i]) >> shift] += masses[i];
        uint32_t bucket = 0;
        while (bucket < 255 && *above + sums[bucket] < goal) *above += sums[bucket++];
        int32_t left = 0;
        for (int32_t i = 0; i < num; i++) {
            const uint32_t key = keys[i];
            const int64_t mass = masses[i];
            keys[left] = key, masses[left] = mass;
            left += (top - key) >> shift == bucket;
        }
        top -= bucket << shift, num = left, bits = shift;
    }
    return of_key(top);
}

/* Chooses what is at least `bound`; returns how many. */
static int32_t choose_above(const float *x, int32_t num, float bound, choice *c) {
    int32_t found = 0, i = 0;
    for (; i + LANES <= num; i += LANES) {
        const vf a = vf_load(x + i);
        const uint32_t bits = vf_at_least(a, vf_set(bound));
        if (!bits) continue;
        store_chosen(a, i, bits, c->values + found, c->places + found);
        found += __builtin_popcount(bits);
    }
    for (; i < num; i++)
        if (x[i] >= bound) c->values[found] = x[i], c->places[found++] = i;
    return found;
}

/* The largest of each of disjoint groups that hold all numbers; returns how many, about `wanted`. */
static int32_t fold_logits(const float *x, int32_t num, int32_t wanted, float *maxima) {
    const int32_t whole = num / LANES * LANES;
    const int32_t block = (whole > wanted ? whole / wanted : 1) * LANES;
    int32_t found = 0;
    for (int32_t start = 0; start < whole; start += block) {
        const int32_t stop = start + block < whole ? start + block : whole;
        vf largest = vf_load(x + start);
        for (int32_t i = start + LANES; i < stop; i += LANES) largest = vf_max(largest, vf_load(x + i));
        vf_store(maxima + found, largest);
        found += LANES;
    }
    for (int32_t i = whole; i < num; i++) maxima[found++] = x[i];
    return found;
}

/* Chooses the `count` largest, of equal ones the first; 0 < count <= num. */
static void choose_largest(const float *x, int32_t num, int32_t count, choice *c) {
    float bound = -INFINITY;
    int64_t above;
    if (count <= num / 16) { /* the count-th largest of some is no larger than that of all */
        const int32_t some = fold_logits(x, num, 8 * count, c->maxima);
        if (some >= count) bound = find_cut(c->maxima, NULL, some, count, &above, c);
    }
    const int32_t among = choose_above(x, num, bound, c);
    if (among == count) return;
    const float cut = find_cut(c->values, NULL, among, count, &above, c);
    int32_t equal = count - (int32_t)above, left = 0;
    for (int32_t i = 0; i < among; i++) {
        const float value = c->values[i];
        if (value < cut || (value == cut && equal-- <= 0)) continue;
        c->values[left] = value, c->places[left++] = c->places[i];
    }
}
