/* Products of rounded rows by a weight's tiles.
 *
 * Sums within a group of 32 inputs are exact integers and groups are added in order, so that a row's product is the same
 * to the bit whatever rows are beside it.
 *
 * Mixed rows (hadamard.h) have one scale, or one a block of 64.
 *
 * Rests of groups (rounded.h) are added afterwards, group by group in order: few groups have them, and mostly the same ones
 * in many rows, so that a tile's codes stay in registers while they are multiplied by all of them.
 *
 * Bound: one row reads the weight once, so memory; from some 8 rows on, two byte products a cycle (on processors with
 * VNNI), of which the scaling of each group's sum leaves about two thirds, and of each block's eight ninths. */
#pragma once

#include "../bough_cpu.h"
#include "../simd/simd.h"
#include "tiles.h"
#include "rounded.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

/* An integer below 2^22 in size, added to these bits, makes the float MAGIC + integer: no conversion is needed. */
#define MAGIC_BITS 0x4b400000
#define MAGIC 12582912.0f

enum { MOST_ROWS = 12, AHEAD = 3072 }; /* rows that are multiplied together; bytes */

/* Sums of products of a tile's code vectors from `start` on, NUM_CODES of them, for NUM rows: all rows by one vector,
 * then all by the next, since a sum is ready for its next product only some cycles later. */
INLINE void dot_rows(const int format, const int NUM, const int start, const int NUM_CODES, const uint8_t *tile,
                     const rounded_group *const *x, int at, vi *dots) {
#pragma GCC unroll 8
    for (int i = 0; i < NUM_CODES; i++) {
        const vi codes = load_code(format, tile, start + i);
#pragma GCC unroll 16
        for (int r = 0; r < NUM; r++) {
            const int8_t *own = x[r / 4]->codes[NUM > 4 ? r % 4 : at + r] + 4 * (start + i);
            dots[r] = format & BOUGH_BITS8 ? vi_dot_bytes(dots[r], codes, own) : vi_dot_small(dots[r], codes, own);
        }
    }
}

/* Exact sums times their scales. Scales of float16 times MAGIC are exact, too: there is one rounding. */
INLINE vf scale_dots(const int format, vi dots, vf scale, vf magic) {
    return format & BOUGH_WIDE ? vf_mul(vi_float(dots), scale) : vf_fma(vi_as_float(dots), scale, magic);
}

/* Lines that will be needed next. */
typedef struct {
    const uint8_t *at, *stop;
    int32_t lines; /* that each tile asks for */
} fetch;

/* One panel's outputs for NUM rows. `x` has the first of them, as its row `at`; with more than four rows, `at` is 0. */
INLINE void multiply(const int format, const int NUM, const uint8_t *tile, const rounded_group *first, int at,
                     int32_t groups, fetch *ahead, vf *sums) {
    const int32_t lines = ahead->at < ahead->stop ? ahead->lines : 0;
    const rounded_group *x[MOST_ROWS / 4];
#pragma GCC unroll 3
    for (int i = 0; i < (NUM + 3) / 4; i++) x[i] = first + i * groups;
    const int halves = format & BOUGH_HALVES, minimum = format & BOUGH_MINIMUM, nested = format & BOUGH_NESTED;
    const int part = 128 / (code_offset(format) ? code_offset(format) : 128);
    const int offset = format & BOUGH_BITS8 ? DOT_OFFSET : code_offset(format), uses_offset = offset != 0;
    const int32_t start = format & BOUGH_WIDE ? 0 : MAGIC_BITS;
    vf factor = vf_set(1.0f), minimum_factor = factor;
#pragma GCC unroll 16
    for (int r = 0; r < NUM; r++) sums[r] = vf_zero();
    for (int32_t group = 0; group < groups; group++, tile += tile_bytes(format)) {
        tile = read_head(format, tile, group, &factor, &minimum_factor);
        for (int32_t i = 0; i < lines; i++, ahead->at += 64) __builtin_prefetch(ahead->at, 0, 2);
        if (NUM <= 4 && !(format & BOUGH_UNPACKED)) /* memory is the bound: hardware does not look far enough ahead */
            for (int i = 0; i < tile_bytes(format); i += 64) __builtin_prefetch(tile + AHEAD + i);
        vf scale = load_scale(format, tile, 0);
        if (nested) scale = vf_mul(scale, factor);
        vf magic = vf_mul(scale, vf_set(-MAGIC));
        vi dots[MOST_ROWS];
        vf products[MOST_ROWS];
#pragma GCC unroll 16
        for (int r = 0; r < NUM; r++) {
            const rounded_group *own = x[r / 4];
            const int row = NUM > 4 ? r % 4 : at + r;
            dots[r] = vi_set(start + (!uses_offset ? 0 : (halves ? own->halves[row][0] : own->offsets[row]) / part));
        }
        dot_rows(format, NUM, 0, halves ? 4 : 8, tile, x, at, dots);
#pragma GCC unroll 16
        for (int r = 0; r < NUM; r++) products[r] = scale_dots(format, dots[r], scale, magic);
        if (halves) {
            scale = load_scale(format, tile, 1);
            if (nested) scale = vf_mul(scale, factor);
            magic = vf_mul(scale, vf_set(-MAGIC));
#pragma GCC unroll 16
            for (int r = 0; r < NUM; r++) {
                const rounded_group *own = x[r / 4];
                dots[r] = vi_set(start + (uses_offset ? own->halves[NUM > 4 ? r % 4 : at + r][1] / part : 0));
            }
            dot_rows(format, NUM, 4, 4, tile, x, at, dots);
#pragma GCC unroll 16
            for (int r = 0; r < NUM; r++) products[r] = vf_add(products[r], scale_dots(format, dots[r], scale, magic));
        }
        vf least = minimum ? load_scale(format, tile, num_scales(format)) : scale;
        if (nested) least = vf_mul(least, minimum_factor);
#pragma GCC unroll 16
        for (int r = 0; r < NUM; r++) {
            const rounded_group *own = x[r / 4];
            const int row = NUM > 4 ? r % 4 : at + r;
            sums[r] = vf_fma(products[r], vf_set(own->scales[row]), sums[r]);
            if (minimum) sums[r] = vf_fma(least, vf_set(own->sums[row]), sums[r]);
        }
#pragma GCC unroll 3
        for (int i = 0; i < (NUM + 3) / 4; i++) {
            x[i]++;
            __asm__("" : "+r"(x[i])); /* a pointer of its own: one and an offset in registers is slower to decode */
        }
    }
}

INLINE vi start_dots(const mixed_block *block, int row) { return vi_set(DOT_OFFSET ? block->offsets[row] : 0); }

/* The same with a panel of HADAMARD; rows have scales of their own, or blocks of them. */
INLINE void multiply_blocks(const int form, const int NUM, const uint8_t *panel, const mixed_block *first, int at,
                            int32_t num_blocks, fetch *ahead, vf *sums) {
    enum { STEPS = BOUGH_BLOCK / 4, BYTES = BOUGH_BLOCK * LANES };
    const int32_t lines = ahead->at < ahead->stop ? 2 * ahead->lines : 0;
    const uint8_t *codes = panel + LANES * 4;
    const vf scale = vf_load((const float *)panel);
    const mixed_block *x[MOST_ROWS / 4];
    vi dots[MOST_ROWS];
#pragma GCC unroll 3
    for (int i = 0; i < (NUM + 3) / 4; i++) x[i] = first + i * num_blocks;
#pragma GCC unroll 16
    for (int r = 0; r < NUM; r++) dots[r] = start_dots(x[r / 4], NUM > 4 ? r % 4 : at + r), sums[r] = vf_zero();
    for (int32_t block = 0; block < num_blocks; block++, codes += BYTES) {
        for (int32_t i = 0; i < lines; i++, ahead->at += 64) __builtin_prefetch(ahead->at, 0, 2);
        if (NUM <= 4)
            for (int i = 0; i < BYTES; i += 64) __builtin_prefetch(codes + AHEAD + i);
#pragma GCC unroll 16
        for (int r = 0; form == IN_BLOCKS && r < NUM; r++) dots[r] = start_dots(x[r / 4], NUM > 4 ? r % 4 : at + r);
#pragma GCC unroll 16
        for (int i = 0; i < STEPS; i++) {
            const vi code = vi_load(codes + i * LANES * 4);
#pragma GCC unroll 16
            for (int r = 0; r < NUM; r++) dots[r] = vi_dot_bytes(dots[r], code, x[r / 4]->codes[NUM > 4 ? r % 4 : at + r] + 4 * i);
        }
#pragma GCC unroll 16
        for (int r = 0; form == IN_BLOCKS && r < NUM; r++)
            sums[r] = vf_fma(vi_float(dots[r]), vf_set(x[r / 4]->scales[NUM > 4 ? r % 4 : at + r]), sums[r]);
#pragma GCC unroll 3
        for (int i = 0; i < (NUM + 3) / 4; i++) {
            x[i]++;
            __asm__("" : "+r"(x[i]));
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < NUM; r++) {
        const float whole = first[r / 4 * num_blocks].scales[NUM > 4 ? r % 4 : at + r];
        sums[r] = vf_mul(form == IN_ROWS ? vf_mul(vi_float(dots[r]), vf_set(whole)) : sums[r], scale);
    }
}

/* Rows of a block of at most 32, as bits, in which a group has a rest. */
typedef struct {
    int32_t group;
    uint32_t rows;
} rest_run;

/* Lists the groups of rows row .. row + num_rows that have rests; returns how many. */
static int32_t list_rests(const rounded *x, int64_t row, int32_t num_rows, rest_run *runs) {
    int32_t num = 0;
    for (int32_t group = 0; group < x->columns / BOUGH_GROUP; group++) {
        const uint8_t *marks = x->marks + group * x->num_rows + row;
        uint32_t rows = 0;
        int32_t i = 0;
        for (; i + 8 <= num_rows; i += 8) {
            uint64_t eight;
            __builtin_memcpy(&eight, marks + i, 8);
            rows |= (uint32_t)(eight * 0x0102040810204080u >> 56) << i; /* the eight lowest bits of bytes, side by side */
        }
        for (; i < num_rows; i++) rows |= (uint32_t)marks[i] << i;
        runs[num] = (rest_run){group, rows};
        num += rows != 0;
    }
    return num;
}

/* y[r * stride] += a panel's outputs for the rests of rows that begin at `row`. */
INLINE void add_rests(const int format, const uint8_t *panel, const rounded *x, int64_t row, const rest_run *runs,
                      int32_t num_runs, float *y, int64_t stride) {
    const int halves = format & BOUGH_HALVES, minimum = format & BOUGH_MINIMUM, nested = format & BOUGH_NESTED;
    const int part = 128 / (code_offset(format) ? code_offset(format) : 128);
    const int offset = format & BOUGH_BITS8 ? DOT_OFFSET : code_offset(format), uses_offset = offset != 0;
    const int32_t start = format & BOUGH_WIDE ? 0 : MAGIC_BITS;
    for (const rest_run *run = runs; run < runs + num_runs; run++) {
        vf factor, minimum_factor, scales[2], magics[2];
        vi codes[8];
        const uint8_t *tile = find_tile(format, panel, run->group, &factor, &minimum_factor);
        const group_rest *rests = x->rests + run->group * x->num_rows + row;
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) codes[i] = load_code(format, tile, i);
#pragma GCC unroll 2
        for (int i = 0; i < num_scales(format); i++) {
            scales[i] = load_scale(format, tile, i);
            if (nested) scales[i] = vf_mul(scales[i], factor);
            magics[i] = vf_mul(scales[i], vf_set(-MAGIC));
        }
        vf least = minimum ? load_scale(format, tile, num_scales(format)) : factor;
        if (nested) least = vf_mul(least, minimum_factor);
        for (uint32_t rows = run->rows; rows; rows &= rows - 1) {
            const int r = __builtin_ctz(rows);
            const group_rest *own = rests + r;
            vi dots[2]; /* of the first and of the last 16 inputs: two sums are ready sooner than one */
            dots[0] = vi_set(start + (!uses_offset ? 0 : (halves ? own->halves[0] : own->offset) / part));
            dots[1] = vi_set(!halves ? 0 : start + (uses_offset ? own->halves[1] / part : 0));
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
#pragma GCC unroll 2
                for (int half = 0; half < 2; half++) {
                    const int8_t *four = own->codes + 16 * half + 4 * i;
                    dots[half] = format & BOUGH_BITS8 ? vi_dot_bytes(dots[half], codes[4 * half + i], four)
                                                      : vi_dot_small(dots[half], codes[4 * half + i], four);
                }
            if (!halves) dots[0] = vi_add(dots[0], dots[1]);
            vf product = scale_dots(format, dots[0], scales[0], magics[0]);
            if (halves) product = vf_add(product, scale_dots(format, dots[1], scales[1], magics[1]));
            vf sum = vf_fma(product, vf_set(own->scale), vf_load(y + r * stride));
            if (minimum) sum = vf_fma(least, vf_set(own->sum), sum);
            vf_store(y + r * stride, sum);
        }
    }
}

INLINE void put(float *y, vf sum, int add) { vf_store(y, add ? vf_add(vf_load(y), sum) : sum); }

/* The outputs of one panel for NUM rows: y[r * stride] = or +=. */
#define MULTIPLY(NUM)                                                                                    \
    {                                                                                                    \
        vf sums[NUM];                                                                                    \
        if (format & BOUGH_HADAMARD)                                                                     \
            multiply_blocks(form, NUM, panel, x->blocks + row / 4 * (groups / 2), (int)(row % 4), groups / 2, ahead, sums); \
        else multiply(format, NUM, panel, x->groups + row / 4 * groups, (int)(row % 4), groups, ahead, sums); \
        _Pragma("GCC unroll 16") for (int r = 0; r < NUM; r++) put(y + r * stride, sums[r], add);        \
        row += NUM, num_rows -= NUM, y += NUM * stride;                                                  \
    }
#if LANES == 16
#define MULTIPLY_MANY                                    \
    while (num_rows >= 12 && num_rows != 16) MULTIPLY(12) \
    while (num_rows >= 8) MULTIPLY(8)
#else
#define MULTIPLY_MANY
#endif

/* What is done with a panel of one format. */
typedef struct {
    /* Its outputs for rows row .. row + num_rows: y[r * stride] = or +=. */
    void (*multiply)(const uint8_t *panel, const rounded *x, int64_t row, int32_t num_rows, float *y, int64_t stride,
                     int add, fetch *ahead);
    void (*multiply_unpacked)(const uint8_t *panel, const rounded *x, int64_t row, int32_t num_rows, float *y, int64_t stride,
                              int add, fetch *ahead);
    void (*unpack)(const uint8_t *panel, int32_t groups, uint8_t *to);
    /* y[r * stride] += its outputs for the rests of rows that begin at `row`. */
    void (*add_rests)(const uint8_t *panel, const rounded *x, int64_t row, const rest_run *runs, int32_t num_runs, float *y,
                      int64_t stride);
    void (*add_rests_unpacked)(const uint8_t *panel, const rounded *x, int64_t row, const rest_run *runs, int32_t num_runs,
                               float *y, int64_t stride);
} product;

#define PRODUCT_OF_ROWS(NAME, FORMAT, FORM)                                                                           \
    static void NAME(const uint8_t *panel, const rounded *x, int64_t row, int32_t num_rows, float *y, int64_t stride, \
                     int add, fetch *ahead) {                                                                         \
        enum { format = FORMAT, form = FORM };                                                                        \
        const int32_t groups = x->columns / BOUGH_GROUP;                                                              \
        MULTIPLY_MANY                                                                                                 \
        while (num_rows >= 4) MULTIPLY(4)                                                                             \
        while (num_rows >= 2) MULTIPLY(2)                                                                             \
        while (num_rows >= 1) MULTIPLY(1)                                                                             \
    }

#define PRODUCT_OF_RESTS(NAME, FORMAT)                                                                                 \
    static void NAME(const uint8_t *panel, const rounded *x, int64_t row, const rest_run *runs, int32_t num_runs,      \
                     float *y, int64_t stride) {                                                                       \
        add_rests(FORMAT, panel, x, row, runs, num_runs, y, stride);                                                   \
    }

#define PRODUCT(NAME, FORMAT)                                                                                          \
    PRODUCT_OF_ROWS(NAME##_packed, (FORMAT), IN_GROUPS)                                                                \
    PRODUCT_OF_ROWS(NAME##_unpacked, ((FORMAT) & ~BOUGH_NESTED) | BOUGH_UNPACKED, IN_GROUPS)                           \
    PRODUCT_OF_RESTS(NAME##_rests, (FORMAT))                                                                           \
    PRODUCT_OF_RESTS(NAME##_rests_unpacked, ((FORMAT) & ~BOUGH_NESTED) | BOUGH_UNPACKED)                               \
    static void NAME##_unpack(const uint8_t *panel, int32_t groups, uint8_t *to) { unpack(FORMAT, panel, groups, to); } \
    static const product NAME = {NAME##_packed, NAME##_unpacked, NAME##_unpack, NAME##_rests, NAME##_rests_unpacked};

PRODUCT_OF_ROWS(hadamard_blocks, BOUGH_BITS8 | BOUGH_HADAMARD, IN_BLOCKS)
PRODUCT_OF_ROWS(hadamard_rows, BOUGH_BITS8 | BOUGH_HADAMARD, IN_ROWS)
static void multiply_hadamard(const uint8_t *panel, const rounded *x, int64_t row, int32_t num_rows, float *y, int64_t stride,
                              int add, fetch *ahead) {
    (x->form == IN_ROWS ? hadamard_rows : hadamard_blocks)(panel, x, row, num_rows, y, stride, add, ahead);
}
static const product product_hadamard = {multiply_hadamard, 0, 0, 0, 0};

PRODUCT(product_4, BOUGH_BITS4)
PRODUCT(product_4_minimum, BOUGH_BITS4 | BOUGH_MINIMUM)
PRODUCT(product_4_wide, BOUGH_BITS4 | BOUGH_WIDE)
PRODUCT(product_4_wide_minimum, BOUGH_BITS4 | BOUGH_WIDE | BOUGH_MINIMUM)
PRODUCT(product_4_nested, BOUGH_BITS4 | BOUGH_NESTED | BOUGH_MINIMUM)
PRODUCT(product_6_nested, BOUGH_BITS6 | BOUGH_NESTED | BOUGH_HALVES)
PRODUCT(product_8, BOUGH_BITS8)
PRODUCT(product_8_minimum, BOUGH_BITS8 | BOUGH_MINIMUM)
PRODUCT(product_8_wide, BOUGH_BITS8 | BOUGH_WIDE)
PRODUCT(product_8_wide_minimum, BOUGH_BITS8 | BOUGH_WIDE | BOUGH_MINIMUM)
PRODUCT(product_8_nested, BOUGH_BITS8 | BOUGH_NESTED | BOUGH_MINIMUM)

static const product *select_product(int32_t format) {
    switch (format) {
        case BOUGH_BITS4: return &product_4;
        case BOUGH_BITS4 | BOUGH_MINIMUM: return &product_4_minimum;
        case BOUGH_BITS4 | BOUGH_WIDE: return &product_4_wide;
        case BOUGH_BITS4 | BOUGH_WIDE | BOUGH_MINIMUM: return &product_4_wide_minimum;
        case BOUGH_BITS4 | BOUGH_NESTED | BOUGH_MINIMUM: return &product_4_nested;
        case BOUGH_BITS6 | BOUGH_NESTED | BOUGH_HALVES: return &product_6_nested;
        case BOUGH_BITS8: return &product_8;
        case BOUGH_BITS8 | BOUGH_MINIMUM: return &product_8_minimum;
        case BOUGH_BITS8 | BOUGH_WIDE: return &product_8_wide;
        case BOUGH_BITS8 | BOUGH_WIDE | BOUGH_MINIMUM: return &product_8_wide_minimum;
        case BOUGH_BITS8 | BOUGH_NESTED | BOUGH_MINIMUM: return &product_8_nested;
        case BOUGH_BITS8 | BOUGH_HADAMARD: return &product_hadamard;
        default: abort(); /* a format was packed that has no product */
    }
}

/* -- panels of several weights -------------------------------------------------------------------------------------- */

enum { PANELS = 4, BLOCK_OF_ROWS = 24 };

/* One panel of a weight, unpacked or as it is, whose outputs begin at column `column` of y's rows. */
typedef struct {
    const bough_weight *weight;
    const product *product;
    const uint8_t *tiles;
    int32_t index, column, is_unpacked;
    fetch ahead;
} panel;

INLINE int32_t num_panels_of(const bough_weight *weight) { return (weight->rows + LANES - 1) / LANES; }

INLINE int64_t unpacked_bytes(int32_t columns) { return (int64_t)(columns / BOUGH_GROUP) * LANES * (32 + 4 * 3); }

/* Panel `index` of weights whose outputs follow one another. */
static panel find_panel(const bough_weight *weights, int32_t index) {
    int32_t column = 0;
    for (; index >= num_panels_of(weights); weights++) index -= num_panels_of(weights), column += weights->rows;
    return (panel){weights, select_product(weights->format), panel_at(weights, index), index, column + index * LANES, 0, {0, 0, 0}};
}

/* Unpacks a panel into `memory` if that pays, from 49 rows on; returns what is left of the memory. */
static uint8_t *unpack_panel(panel *at, int32_t num_rows, uint8_t *memory) {
    if (num_rows <= 2 * BLOCK_OF_ROWS || !at->product->unpack) return memory;
    at->product->unpack(at->tiles, at->weight->columns / BOUGH_GROUP, memory);
    at->tiles = memory;
    at->is_unpacked = 1;
    return memory + unpacked_bytes(at->weight->columns);
}

/* Has panel `next`, if there is one, fetched while `at` is multiplied by all rows, so that memory does not wait for
 * arithmetic, nor arithmetic for memory: into the second cache, since the first is smaller than a panel. */
static void prefetch_panel(panel *at, const bough_weight *weights, int32_t next, int32_t num_panels, int32_t num_rows) {
    if (next >= num_panels || num_rows <= 4) return;
    const panel after = find_panel(weights, next);
    const int32_t bytes = (int32_t)panel_bytes(after.weight->format, after.weight->columns);
    const int32_t tiles = at->weight->columns / BOUGH_GROUP * (num_rows < 16 ? 1 : num_rows / 8);
    at->ahead = (fetch){after.tiles, after.tiles + bytes, (bytes / 64 + tiles - 1) / tiles};
}

/* Groups of a block of rows that have rests. */
typedef struct {
    const rest_run *runs;
    int32_t num;
} block_rests;

INLINE void add_panel_rests(const panel *at, const rounded *x, int64_t row, block_rests rests, float *y, int64_t stride) {
    if (rests.num) (at->is_unpacked ? at->product->add_rests_unpacked : at->product->add_rests)(at->tiles, x, row, rests.runs, rests.num, y, stride);
}

/* y (+)= a panel's outputs for some rows, with the bias; of the last panel, only those that the weight has. */
static void multiply_panel(panel *at, const rounded *x, int64_t row, int32_t num_rows, block_rests rests, float *y, int64_t stride,
                           int add) {
    const bough_weight *weight = at->weight;
    const int32_t left = weight->rows - at->index * LANES;
    float edge[BLOCK_OF_ROWS * LANES];
    float *to = left < LANES ? edge : y;
    const int64_t to_stride = left < LANES ? LANES : stride;
    (at->is_unpacked ? at->product->multiply_unpacked : at->product->multiply)(at->tiles, x, row, num_rows, to, to_stride,
                                                                               left < LANES ? 0 : add, &at->ahead);
    add_panel_rests(at, x, row, rests, to, to_stride);
    const float *bias = weight->bias ? weight->bias + at->index * LANES : 0;
    if (left >= LANES && bias)
        for (int32_t r = 0; r < num_rows; r++) put(y + r * stride, vf_load(bias), 1);
    for (int32_t r = 0; left < LANES && r < num_rows; r++)
        for (int32_t i = 0; i < left; i++) {
            const float sum = edge[r * LANES + i] + (bias ? bias[i] : 0.0f);
            y[r * stride + i] = add ? y[r * stride + i] + sum : sum;
        }
}

/* y[r * stride] += the outputs of a panel as it is for the rests of a block; of the last panel, those that the weight has. */
static void add_rests_to(const panel *at, const rounded *x, int64_t row, int32_t num_rows, block_rests rests, float *y,
                         int64_t stride) {
    const int32_t left = at->weight->rows - at->index * LANES;
    if (left >= LANES) {
        add_panel_rests(at, x, row, rests, y, stride);
        return;
    }
    float edge[BLOCK_OF_ROWS * LANES] = {0};
    for (int32_t r = 0; r < num_rows; r++)
        for (int32_t i = 0; i < left; i++) edge[r * LANES + i] = y[r * stride + i];
    add_panel_rests(at, x, row, rests, edge, LANES);
    for (int32_t r = 0; r < num_rows; r++)
        for (int32_t i = 0; i < left; i++) y[r * stride + i] = edge[r * LANES + i];
}

/* Puts the largest outputs of some panels of one weight, of its row `y` of them, at their indices in `peaks`. */
INLINE void find_peaks(const panel *panels, int32_t num, const float *y, float *peaks) {
    const int32_t start = panels[0].index, columns = panels[0].weight->rows;
    if (num == 4 && (start + 4) * LANES <= columns) {
        vf outputs[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) outputs[i] = vf_load(y + (start + i) * LANES);
        vf_store_four(peaks + start, vf_largest_of(outputs));
        return;
    }
    for (int32_t i = start; i < start + num; i++) {
        peaks[i] = -INFINITY;
        for (int32_t k = i * LANES; k < (i + 1) * LANES && k < columns; k++) peaks[i] = fmaxf(peaks[i], y[k]);
    }
}
