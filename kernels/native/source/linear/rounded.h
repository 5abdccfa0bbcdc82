/* Activations rounded to 8 bits in groups of 32, or mixed (see hadamard.h) and rounded in blocks of 64, each by a scale of
 * its own: a row's codes depend on that row alone.
 *
 * Groups far above the others hold most of what rounding loses. What it leaves of them is rounded once more, to 254ths of
 * their scale, so that they have 16 bits: their rests. */
#pragma once

#include "../bough_cpu.h"
#include "../faults.h"
#include "../simd/simd.h"
#include "hadamard.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* 32 numbers of each of four rows. */
typedef struct {
    int8_t codes[4][BOUGH_GROUP];
    float scales[4];
    float sums[4];        /* of the numbers */
    int32_t offsets[4];   /* -128 times the sum of the codes: takes back what a weight's codes have too much */
    int32_t halves[4][2]; /* the same, of the first and of the last 16 */
} rounded_group;

/* 64 numbers of each of four rows, mixed. */
typedef struct {
    int8_t codes[4][BOUGH_BLOCK];
    float scales[4];
    int32_t offsets[4]; /* -128 times the sum of the codes */
} mixed_block;

/* What rounding has left of a row's 32 numbers, rounded in its turn. */
typedef struct {
    int8_t codes[BOUGH_GROUP];
    float scale, sum;   /* sum: of the numbers */
    int32_t offset;     /* -128 times the sum of the codes */
    int32_t halves[2];  /* the same, of the first and of the last 16 */
    int32_t unused[3];
} group_rest;

enum { REST_STEPS = 254 }; /* of a scale, that rests are rounded to */

/* What has a scale of its own: 32 numbers, 64 mixed ones, or a row of them. */
enum { IN_GROUPS, IN_BLOCKS, IN_ROWS };

typedef struct {
    int32_t columns, form;
    union {
        rounded_group *groups; /* [ceil(rows / 4)][columns / 32] */
        mixed_block *blocks;   /* [ceil(rows / 4)][columns / 64]; of a row with one scale, the first one has it */
    };
    group_rest *rests; /* [columns / 32][num_rows], where marked; NULL: groups have none */
    uint8_t *marks;    /* the same: 1 where a group has a rest, else 0 */
    int64_t num_rows;
} rounded;

/* Where 32 numbers are (64, if they are mixed), and the row and the group that they are rounded to. */
typedef struct {
    const float *numbers;
    int64_t row;
    int32_t group;
} to_round;

/* Marks the rows of groups whose scales are not finite, and takes zeros instead of their numbers, since only the scales count. */
static __attribute__((noinline, cold)) void clear_faults(to_round *from, int num, const float *scales, const fault_log *log) {
    static const float zeros[BOUGH_GROUP];
    for (int i = 0; i < num; i++) {
        if (isfinite(scales[i])) continue;
        mark_fault(log, from[i].row);
        from[i].numbers = zeros;
    }
}

/* Rounds up to four times 32 numbers; together, since what is done across lanes is done once for all. */
INLINE void round_groups(to_round *from, int num, const rounded *out, const fault_log *log) {
    enum { VECTORS = BOUGH_GROUP / LANES };
    vf largest[4];
    vi sums[2][4];
    float scales[LANES], inverses[LANES];
    int32_t counts[2][LANES];
    for (int i = 0; i < 4; i++) {
        const float *x = from[i < num ? i : 0].numbers;
        largest[i] = vf_zero();
        for (int v = 0; v < VECTORS; v++) largest[i] = vf_max_size(largest[i], vf_abs(vf_load(x + v * LANES)));
    }
    const vf scale = vf_div(vf_largest_size_of(largest), vf_set(127.0f));
    vf_store(scales, scale);
    vf_store(inverses, vf_div(vf_set(1.0f), scale));
    if (__builtin_expect(!vf_all_finite(scale), 0)) clear_faults(from, num, scales, log);
    for (int i = 0; i < 4; i++) {
        const to_round *own = from + (i < num ? i : 0);
        rounded_group *to = out->groups + own->row / 4 * (out->columns / BOUGH_GROUP) + own->group;
        const vf inverse = vf_set(scales[i] > 1e-30f ? inverses[i] : 0.0f);
        sums[0][i] = sums[1][i] = vi_set(0);
        for (int v = 0; v < VECTORS; v++) {
            const vi code = vf_int(vf_mul(vf_load(own->numbers + v * LANES), inverse));
            vi_store_bytes(to->codes[own->row % 4] + v * LANES, code);
            sums[2 * v / VECTORS][i] = vi_add(sums[2 * v / VECTORS][i], code);
        }
    }
    vi_store(counts[0], vi_sum_of(sums[0]));
    vi_store(counts[1], vi_sum_of(sums[1]));
    for (int i = 0; i < num; i++) {
        rounded_group *to = out->groups + from[i].row / 4 * (out->columns / BOUGH_GROUP) + from[i].group;
        const int at = (int)(from[i].row % 4), count = counts[0][i] + counts[1][i];
        to->scales[at] = scales[i];
        to->sums[at] = scales[i] * (float)count;
        to->offsets[at] = -128 * count;
        to->halves[at][0] = -128 * counts[0][i];
        to->halves[at][1] = -128 * counts[1][i];
    }
}

/* Mixes and rounds up to four blocks. */
INLINE void round_blocks(const to_round *from, int num, const rounded *out, const fault_log *log) {
    vf numbers[4][BLOCK_VECTORS], largest[4];
    float scales[LANES], inverses[LANES];
    int32_t counts[LANES];
    vi sums[4];
    for (int i = 0; i < 4; i++) {
        mix(from[i < num ? i : 0].numbers, numbers[i]);
        largest[i] = vf_abs(numbers[i][0]);
#pragma GCC unroll 8
        for (int v = 1; v < BLOCK_VECTORS; v++) largest[i] = vf_max_size(largest[i], vf_abs(numbers[i][v]));
    }
    const vf scale = vf_div(vf_largest_size_of(largest), vf_set(127.0f));
    vf_store(scales, scale);
    vf_store(inverses, vf_div(vf_set(1.0f), scale));
    const int finite = vf_all_finite(scale);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        if (__builtin_expect(finite || isfinite(scales[i]), 1)) continue;
        if (i < num) mark_fault(log, from[i].row);
#pragma GCC unroll 8
        for (int v = 0; v < BLOCK_VECTORS; v++) numbers[i][v] = vf_zero(); /* only the scale counts */
    }
    const int32_t num_blocks = out->columns / BOUGH_BLOCK;
    for (int i = 0; i < 4; i++) {
        const to_round *own = from + (i < num ? i : 0);
        mixed_block *to = out->blocks + own->row / 4 * num_blocks + own->group;
        const vf inverse = vf_set(scales[i] > 1e-30f ? inverses[i] : 0.0f);
        sums[i] = vi_set(0);
#pragma GCC unroll 8
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            const vi code = vf_int(vf_mul(numbers[i][v], inverse));
            vi_store_bytes(to->codes[own->row % 4] + v * LANES, code);
            sums[i] = vi_add(sums[i], code);
        }
    }
    vi_store(counts, vi_sum_of(sums));
    for (int i = 0; i < num; i++) {
        mixed_block *to = out->blocks + from[i].row / 4 * num_blocks + from[i].group;
        to->scales[from[i].row % 4] = scales[i];
        to->offsets[from[i].row % 4] = -128 * counts[i];
    }
}

/* Mixes and rounds a whole row with one scale; `x` is overwritten. */
INLINE void round_whole(float *x, const rounded *out, int64_t row, const fault_log *log) {
    const int32_t num_blocks = out->columns / BOUGH_BLOCK;
    mixed_block *to = out->blocks + row / 4 * num_blocks;
    vf largest = vf_zero();
    vi count = vi_set(0);
    for (int32_t block = 0; block < num_blocks; block++) {
        vf numbers[BLOCK_VECTORS];
        mix(x + block * BOUGH_BLOCK, numbers);
#pragma GCC unroll 8
        for (int v = 0; v < BLOCK_VECTORS; v++) {
            largest = vf_max_size(largest, vf_abs(numbers[v]));
            vf_store(x + block * BOUGH_BLOCK + v * LANES, numbers[v]);
        }
    }
    const float scale = vf_largest_size(largest) / 127.0f;
    if (!isfinite(scale)) {
        mark_fault(log, row);
        memset(x, 0, (size_t)out->columns * sizeof(float));
    }
    const vf inverse = vf_set(scale > 1e-30f ? 1.0f / scale : 0.0f);
    for (int32_t i = 0; i < out->columns; i += LANES) {
        const vi code = vf_int(vf_mul(vf_load(x + i), inverse));
        vi_store_bytes(to[i / BOUGH_BLOCK].codes[row % 4] + i % BOUGH_BLOCK, code);
        count = vi_add(count, code);
    }
    to->scales[row % 4] = scale;
    to->offsets[row % 4] = -128 * vi_total(count);
}

/* In which form rows are multiplied by a weight. */
INLINE int32_t form_for(const bough_weight *weight) { return weight->format & BOUGH_HADAMARD ? IN_BLOCKS : IN_GROUPS; }

/* How many numbers are rounded together. */
INLINE int32_t group_size(const rounded *out) { return out->form == IN_GROUPS ? BOUGH_GROUP : BOUGH_BLOCK; }

/* Rounds up to four groups, or blocks. */
INLINE void round_numbers(to_round *from, int num, const rounded *out, const fault_log *log) {
    if (out->form == IN_GROUPS) round_groups(from, num, out, log);
    else round_blocks(from, num, out, log);
}

/* Rounds `num` groups, or blocks, of a row, from number `group` on. */
INLINE void round_row(const float *x, int32_t num, const rounded *out, int64_t row, int32_t group, const fault_log *log) {
    for (int32_t i = 0; i < num; i += 4) {
        to_round from[4];
        for (int32_t k = 0; k < 4; k++) from[k] = (to_round){x + (i + k) * group_size(out), row, group + i + k};
        round_numbers(from, num - i < 4 ? num - i : 4, out, log);
    }
}

/* Rounds what rounding has left of a group, the numbers at `x`. */
INLINE void round_rest(const float *x, const rounded *out, int64_t row, int32_t group) {
    const float scale = out->groups[row / 4 * (out->columns / BOUGH_GROUP) + group].scales[row % 4];
    const vf inverse = vf_set(1.0f / scale), steps = vf_set(REST_STEPS);
    group_rest *to = out->rests + group * out->num_rows + row;
    vi sums[2] = {vi_set(0), vi_set(0)};
    for (int i = 0; i < BOUGH_GROUP; i += LANES) {
        const vf exact = vf_mul(vf_load(x + i), inverse);
        const vi code = vf_int(vf_mul(vf_sub(exact, vi_float(vf_int(exact))), steps));
        vi_store_bytes(to->codes + i, code);
        sums[2 * i / BOUGH_GROUP] = vi_add(sums[2 * i / BOUGH_GROUP], code);
    }
    const int32_t counts[2] = {vi_total(sums[0]), vi_total(sums[1])}, count = counts[0] + counts[1];
    to->scale = scale / REST_STEPS;
    to->sum = to->scale * (float)count;
    to->offset = -128 * count;
    to->halves[0] = -128 * counts[0], to->halves[1] = -128 * counts[1];
}

/* True if a scale is of numbers that get a rest; of a row that is not finite, none do. */
INLINE int gets_rest(float scale, float limit) { return scale > limit && scale > 1e-30f && scale < INFINITY; }

/* Gives one group of up to four rows, side by side, rests where its scales are above their rows' limits. */
INLINE void mark_rows(const to_round *from, int num, const float *limits, const rounded *out) {
    const int64_t row = from->row;
    const int32_t group = from->group;
    const float *scales = out->groups[row / 4 * (out->columns / BOUGH_GROUP) + group].scales + row % 4;
    uint8_t *marks = out->marks + group * out->num_rows + row;
    if (num == 4 && !any_above(scales, limits + row)) { /* as a rule */
        memset(marks, 0, 4);
        return;
    }
    for (int i = 0; i < num; i++) {
        marks[i] = (uint8_t)gets_rest(scales[i], limits[row + i]);
        if (marks[i]) round_rest(from[i].numbers, out, row + i, group);
    }
}

/* Gives a row's groups rests whose scales, squared, are above `share` times the mean of all of them. */
static void mark_row(const float *x, float share, const rounded *out, int64_t row) {
    const int32_t groups = out->columns / BOUGH_GROUP;
    const rounded_group *own = out->groups + row / 4 * groups;
    float squares = 0.0f;
    for (int32_t i = 0; i < groups; i++) squares += own[i].scales[row % 4] * own[i].scales[row % 4];
    const float limit = sqrtf(share / (float)groups * squares);
    for (int32_t i = 0; i < groups; i++) {
        const int is_marked = gets_rest(own[i].scales[row % 4], limit);
        out->marks[i * out->num_rows + row] = (uint8_t)is_marked;
        if (is_marked) round_rest(x + i * BOUGH_GROUP, out, row, i);
    }
}
