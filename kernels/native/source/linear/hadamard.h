/* Weights of 8 bits with one scale an output, for activations with one scale a row, or a block of 64.
 *
 * Both are multiplied by an orthogonal matrix, block by block of inputs, which leaves their products as they are and
 * spreads what is large in few places over all, so that few scales do (QuaRot, arXiv 2404.00456). The matrix is Sylvester's
 * of Hadamard with a bent function's signs: it spreads a constant as evenly as it spreads a single number.
 *
 * A panel has float32 [LANES] scales, and then for each block 16 vectors of codes, of which vector i has inputs 4 i ..
 * 4 i + 4, each 128 too large. */
#pragma once

#include "../bough_cpu.h"
#include "../pool.h"
#include "../simd/simd.h"
#include "tiles.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

enum { BLOCK_VECTORS = BOUGH_BLOCK / LANES };

#define SIGN(i) (0x96 >> ((i) >> 3 & (i)) & 1 ? -1.0f : 1.0f) /* the parity of three bits */
#define SIGNS(i) SIGN(i), SIGN(i + 1), SIGN(i + 2), SIGN(i + 3), SIGN(i + 4), SIGN(i + 5), SIGN(i + 6), SIGN(i + 7)
static const float signs[BOUGH_BLOCK] = {SIGNS(0), SIGNS(8), SIGNS(16), SIGNS(24), SIGNS(32), SIGNS(40), SIGNS(48), SIGNS(56)};

/* v = the block at `x` times the matrix, times 8. */
INLINE void mix(const float *x, vf v[BLOCK_VECTORS]) {
#pragma GCC unroll 8
    for (int i = 0; i < BLOCK_VECTORS; i++) v[i] = vf_mix(vf_mul(vf_load(x + i * LANES), vf_load(signs + i * LANES)));
#pragma GCC unroll 4
    for (int step = 1; step < BLOCK_VECTORS; step *= 2)
#pragma GCC unroll 8
        for (int i = 0; i < BLOCK_VECTORS; i++) {
            if (i & step) continue;
            const vf a = v[i], b = v[i + step];
            v[i] = vf_add(a, b), v[i + step] = vf_sub(a, b);
        }
}

/* The codes of one panel from its numbers [columns][LANES], which are overwritten. Returns whether they are finite. */
static int mix_panel(float *numbers, int32_t columns, uint8_t *panel) {
    vf largest = vf_zero();
    for (int32_t start = 0; start < columns; start += BOUGH_BLOCK) {
        float *block = numbers + start * LANES;
        for (int i = 0; i < BOUGH_BLOCK; i++) vf_store(block + i * LANES, vf_mul(vf_load(block + i * LANES), vf_set(signs[i])));
        for (int step = 1; step < BOUGH_BLOCK; step *= 2)
            for (int i = 0; i < BOUGH_BLOCK; i++) {
                if (i & step) continue;
                float *left = block + i * LANES, *right = left + step * LANES;
                const vf a = vf_load(left), b = vf_load(right);
                vf_store(left, vf_add(a, b)), vf_store(right, vf_sub(a, b));
            }
        for (int i = 0; i < BOUGH_BLOCK; i++) largest = vf_max_size(largest, vf_abs(vf_load(block + i * LANES)));
    }
    float scales[LANES];
    vf_store(scales, vf_max(vf_set(1e-30f), vf_div(largest, vf_set(127.0f)))); /* NaN stays */
    const vf inverse = vf_div(vf_set(1.0f), vf_load(scales));
    vf_store((float *)panel, vf_mul(vf_load(scales), vf_set(1.0f / BOUGH_BLOCK)));
    panel += LANES * 4;
    for (int32_t i = 0; i < columns; i++) {
        int8_t codes[LANES];
        vi_store_bytes(codes, vf_int(vf_mul(vf_load(numbers + i * LANES), inverse)));
        for (int lane = 0; lane < LANES; lane++) panel[i / 4 * LANES * 4 + lane * 4 + i % 4] = (uint8_t)(codes[lane] + 128);
    }
    return vf_all_finite(largest);
}

typedef struct {
    bough_pool *pool;
    const bough_weight *from;
    const float *numbers; /* [rows][columns], if there is no `from` */
    int32_t rows, columns;
    uint8_t *tiles;
    float *memory; /* of each thread [columns][LANES] */
    int32_t num_faults; /* panels with numbers that are not finite */
} mixing;

static void mix_panels(void *context, int32_t thread) {
    mixing *p = context;
    const int32_t num_panels = (p->rows + LANES - 1) / LANES;
    float *numbers = p->memory + (int64_t)thread * p->columns * LANES;
    for (int32_t panel; (panel = bough_pool_next(p->pool, thread, num_panels)) < num_panels;) {
        if (p->from) read_panel(p->from, panel, numbers);
        for (int lane = 0; !p->from && lane < LANES; lane++)
            for (int32_t i = 0; i < p->columns; i++) {
                const int64_t row = (int64_t)panel * LANES + lane;
                numbers[i * LANES + lane] = row < p->rows ? p->numbers[row * p->columns + i] : 0.0f;
            }
        uint8_t *tiles = p->tiles + panel * panel_bytes(BOUGH_BITS8 | BOUGH_HADAMARD, p->columns);
        if (!mix_panel(numbers, p->columns, tiles)) __atomic_fetch_add(&p->num_faults, 1, __ATOMIC_RELAXED);
    }
}

static int32_t mix_weight(bough_pool *pool, const bough_weight *from, const float *numbers, int32_t rows, int32_t columns, uint8_t *tiles) {
    mixing p = {.pool = pool, .from = from, .numbers = numbers, .rows = rows, .columns = columns, .tiles = tiles};
    p.memory = aligned_alloc(64, (size_t)bough_pool_size(pool) * (size_t)columns * LANES * sizeof(float));
    if (p.memory) bough_pool_run(pool, mix_panels, &p);
    free(p.memory);
    return !p.memory ? 0 : p.num_faults ? -1 : 1;
}
