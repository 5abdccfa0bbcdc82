/* Attention of some queries to one chunk of keys and values, whole numbers at any places of memory.
 *
 * Products of queries by keys, and of weights by values, are exact integers within a chunk, so that it makes no difference
 * to any bit in which order they are added. A chunk that many queries see is brought into an order of its own first, keys
 * transposed, so that lanes are keys. Few queries multiply its keys as they are: lanes are dimensions, to be summed up.
 *
 * Sums of values, and states, have a head's dimensions in the order in which unpacking two rows leaves them. */
#pragma once

#include "../simd/simd.h"
#include "../simd/functions.h"
#include "../linear/hadamard.h"
#include "../linear/rounded.h"
#include "../linear/linear.h"

#include <math.h>
#include <stdint.h>

enum { CHUNK = 64, MOST_HEAD_DIM = 256 };
enum { STATE = 2 }; /* a state is the largest score, the sum, and [head_dim] */

/* Largest codes: of keys and values, of queries, and of weights times their values' scales. 256 products of the first two, and
 * CHUNK of the first and the last, are less than 2^31. In a cache of 8 bits all have 8: 127, or 255 of weights. */
enum { MOST_STORED = 2047, MOST_QUERY = 4095, MOST_WEIGHT = 16383, MOST_BYTE = 255 };

/* Added to codes of weights before what follows the point is cut off, so that many small ones keep their sum. */
#define REVERSED(k) (((k) & 1) << 5 | ((k) & 2) << 3 | ((k) & 4) << 1 | ((k) & 8) >> 1 | ((k) & 16) >> 3 | ((k) & 32) >> 5)
#define DITHER(k) (((float)REVERSED(k) + 0.5f) / CHUNK)
#define DITHERS(k) DITHER(k), DITHER(k + 1), DITHER(k + 2), DITHER(k + 3), DITHER(k + 4), DITHER(k + 5), DITHER(k + 6), DITHER(k + 7)
static const float dither[CHUNK] = {DITHERS(0), DITHERS(8), DITHERS(16), DITHERS(24), DITHERS(32), DITHERS(40), DITHERS(48), DITHERS(56)};

#if LANES == 16
#define TOGETHER 4 /* queries that share each load of a key or value */
#else
#define TOGETHER 2
#endif

typedef struct {
    int32_t *keys;    /* [head_dim / 2][CHUNK]: pairs of dimensions, or [head_dim / 4][CHUNK]: four, if it is narrow */
    int32_t *values;  /* [CHUNK / 2][head_dim]: pairs of keys, or [CHUNK / 4][head_dim]: four */
    float *scores;    /* [TOGETHER][CHUNK] */
    int16_t *weights; /* [TOGETHER][CHUNK], or as many of 8 bits */
} chunk_scratch;

/* Where a chunk's positions are: `num` slots, and then the last one again. */
typedef struct {
    int64_t slots[CHUNK];
    int num;
} places;

/* One head's part of a chunk. `next`: what will be read soon, at places that no hardware foresees, or NULL; `pace` of its
 * positions for each of the chunk's own. */
typedef struct {
    const uint8_t *keys, *values;              /* of the head: a slot's begin at slot * stride */
    float key_scales[CHUNK], value_scales[CHUNK];
    const places *at, *next;
    int64_t stride;
    int32_t dim, bits, pace;
    int is_wide; /* it is in the scratch */
} chunk;

/* Queries that see keys first .. last (half open) of a chunk each, and the states that they have come to. */
typedef struct {
    const int16_t *queries[TOGETHER];
    const int8_t *narrow[TOGETHER]; /* the same in 8 bits, if the chunk is narrow */
    int32_t sums[TOGETHER];         /* of them */
    float factors[LANES]; /* of scores, base 2 */
    float *states[TOGETHER];
    int32_t first[TOGETHER], last[TOGETHER];
    int num, seen; /* seen: keys that any of them may see */
} readers;

/* 2 LANES codes of a row from dimension `d` on. */
INLINE vi load_codes(const int bits, const uint8_t *row, int32_t d) {
    return bits == 8 ? vi_widen_bytes(row + d) : vi_load(row + 2 * d);
}

INLINE void prefetch_row(const int bits, const uint8_t *row, int32_t dim) {
    for (int32_t i = 0; i < dim * bits / 8; i += 64) __builtin_prefetch(row + i, 0, 2);
}

/* Asks for parts of the rows of keys or values that come next, as many as are due at position `k`. */
INLINE void prefetch_next(const int bits, const chunk *c, const uint8_t *rows, int k, int32_t d, int32_t dim) {
    for (int i = k * c->pace; i < (k + 1) * c->pace && i < c->next->num; i++)
        prefetch_row(bits, rows + c->next->slots[i] * c->stride + d * bits / 8, dim);
}

/* Queries and keys of a head are multiplied as bytes, where vectors of keys are full of them, and so are weights and values
 * if BYTE_WEIGHTS: four keys a lane. Codes are the same in either form, and so are exact products. */
INLINE int is_narrow(int32_t bits, int32_t dim) { return bits == 8 && dim % (4 * LANES) == 0; }

/* Brings a chunk into the scratch. */
INLINE void open_chunk(const int bits, const int narrow, const chunk *c, const chunk_scratch *scratch) {
    const int32_t dim = c->dim, per_lane = narrow ? 4 : 2;
    for (int i = 0; i < c->at->num; i += LANES)
        for (int32_t d = 0; d < dim; d += per_lane * LANES) {
            vi rows[LANES];
#pragma GCC unroll 16
            for (int k = 0; k < LANES; k++) {
                const uint8_t *key = c->keys + c->at->slots[i + k] * c->stride;
                rows[k] = narrow ? vi_flip(vi_load(key + d)) : load_codes(bits, key, d);
            }
            transpose(rows);
#pragma GCC unroll 16
            for (int k = 0; k < LANES; k++) vi_store(scratch->keys + (d / per_lane + k) * CHUNK + i, rows[k]);
        }
    const int four = narrow && BYTE_WEIGHTS;
    for (int i = 0; four && i < c->at->num; i += 4)
        for (int32_t d = 0; d < dim; d += 4 * LANES) {
            const uint8_t *rows[4];
            vi fours[4];
            for (int k = 0; k < 4; k++) rows[k] = c->values + c->at->slots[i + k] * c->stride + d;
            vi_unpack_bytes(rows, fours);
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) vi_store(scratch->values + i / 4 * dim + d + k * LANES, fours[k]);
        }
    for (int i = 0; !four && i < c->at->num; i += 2)
        for (int32_t d = 0; d < dim; d += 2 * LANES) {
            const vi a = load_codes(bits, c->values + c->at->slots[i] * c->stride, d);
            const vi b = load_codes(bits, c->values + c->at->slots[i + 1] * c->stride, d);
            vi_store(scratch->values + i / 2 * dim + d, vi_unpack_low(a, b));
            vi_store(scratch->values + i / 2 * dim + d + LANES, vi_unpack_high(a, b));
        }
    for (int i = 0; c->next && i < c->next->num; i++) {
        prefetch_row(bits, c->keys + c->next->slots[i] * c->stride, dim);
        prefetch_row(bits, c->values + c->next->slots[i] * c->stride, dim);
    }
}

/* Scores of NUM queries with VECTORS vectors of the keys in the scratch. An infinite scale must not make a score of -infinity,
 * which stands for a key that is not seen. */
INLINE void score_wide(const int NUM, const int VECTORS, const int narrow, const readers *by, const chunk *c, int32_t dim,
                       int first, const chunk_scratch *scratch) {
    vi sums[TOGETHER * 4];
#pragma GCC unroll 16
    for (int i = 0; i < NUM * VECTORS; i++) sums[i] = vi_set(narrow ? -DOT_OFFSET * by->sums[i / VECTORS] : 0);
    for (int32_t unit = 0; unit < dim / (narrow ? 4 : 2); unit++) {
        vi keys[4];
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; i++) keys[i] = vi_load(scratch->keys + unit * CHUNK + first + i * LANES);
#pragma GCC unroll 4
        for (int r = 0; r < NUM; r++) {
            const vi query = vi_four(narrow ? (const void *)(by->narrow[r] + 4 * unit) : by->queries[r] + 2 * unit);
#pragma GCC unroll 4
            for (int i = 0; i < VECTORS; i++) {
                vi *sum = sums + r * VECTORS + i;
                *sum = narrow ? vi_dot_vectors(*sum, keys[i], query) : vi_dot_pairs(*sum, keys[i], query);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < NUM; r++)
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; i++) {
            const int at = first + i * LANES;
            vf_store(scratch->scores + r * CHUNK + at, vf_mul(vi_float(sums[r * VECTORS + i]), vf_or_nan(vf_load(c->key_scales + at))));
        }
}

/* The same scores with the keys as they are. */
INLINE void score_few(const int bits, const int NUM, const readers *by, const chunk *c, int32_t dim, const chunk_scratch *scratch) {
    for (int first = 0; first < by->seen; first += LANES) {
        vi fours[TOGETHER][LANES / 4];
#pragma GCC unroll 4
        for (int i = 0; i < LANES / 4; i++) {
            vi sums[4][TOGETHER];
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
                const uint8_t *key = c->keys + c->at->slots[first + 4 * i + k] * c->stride;
#pragma GCC unroll 4
                for (int r = 0; r < NUM; r++) sums[k][r] = vi_set(0);
                for (int32_t d = 0; d < dim; d += 2 * LANES) {
                    const vi codes = load_codes(bits, key, d);
#pragma GCC unroll 4
                    for (int r = 0; r < NUM; r++) sums[k][r] = vi_dot_pairs(sums[k][r], codes, vi_load(by->queries[r] + d));
                }
                if (c->next) prefetch_next(bits, c, c->keys, first + 4 * i + k, 0, dim);
            }
#pragma GCC unroll 4
            for (int r = 0; r < NUM; r++)
                fours[r][i] = sums_of_fours(sums_of_pairs(sums[0][r], sums[1][r]), sums_of_pairs(sums[2][r], sums[3][r]));
        }
#pragma GCC unroll 4
        for (int r = 0; r < NUM; r++)
            vf_store(scratch->scores + r * CHUNK + first,
                     vf_mul(vi_float(sums_of_all(fours[r])), vf_or_nan(vf_load(c->key_scales + first))));
    }
}

/* What a chunk does to a reader's sums of values: they are multiplied by `shrink`, and products of codes by `scale`. */
typedef struct {
    float shrink[LANES], scale[LANES];
} effects;

/* The largest score of the keys that a reader sees; other scores become -infinity. */
INLINE vf see(const int is_whole, const readers *by, int r, float *scores) {
    vf largest = vf_set(-INFINITY);
#pragma GCC unroll 8
    for (int i = 0; i < CHUNK; i += LANES) {
        if (!is_whole && i >= by->seen) break;
        vf score = vf_load(scores + i);
        if (!is_whole) {
            score = vf_within(score, by->first[r] - i, by->last[r] - i, -INFINITY);
            vf_store(scores + i, score);
        }
        largest = vf_max(largest, score);
    }
    return largest;
}

/* Turns scores into weights, 2^(score * factor - top), and these into products with their values' scales, the largest of
 * which is `most`; returns the weights' sum. NaN of a key's scale that is seen is in the sum, and of a value's in `most`. */
INLINE vf weigh(const int is_whole, const readers *by, int r, const chunk *c, float *scores, float factor, float top, vf *most) {
    vf sums[16 / LANES] = {vf_zero()};
    *most = vf_zero();
#pragma GCC unroll 8
    for (int i = 0; i < CHUNK; i += LANES) {
        if (!is_whole && i >= by->seen) break;
        vf weight = vf_exp2(vf_fma(vf_load(scores + i), vf_set(factor), vf_set(-top)));
        vf product = vf_mul(weight, vf_load(c->value_scales + i));
        if (!is_whole) {
            weight = vf_within(weight, by->first[r] - i, by->last[r] - i, 0.0f);
            product = vf_within(product, by->first[r] - i, by->last[r] - i, 0.0f);
        }
        vf *sum = sums + i / LANES % (16 / LANES);
        *sum = vf_add(*sum, weight);
        *most = vf_max_size(*most, product);
        vf_store(scores + i, product);
    }
    return vf_folded(sums);
}

/* Codes of these products, by `inverse`. */
INLINE void round_weights(const int four, const int is_whole, const readers *by, int r, const chunk_scratch *scratch, float inverse) {
#pragma GCC unroll 8
    for (int i = r * CHUNK; i < (r + 1) * CHUNK; i += LANES) {
        if (!is_whole && i - r * CHUNK >= by->seen) break;
        const vi code = vf_cut(vf_fma(vf_load(scratch->scores + i), vf_set(inverse), vf_load(dither + i % CHUNK)));
        if (four) vi_store_codes((uint8_t *)scratch->weights + i, code);
        else vi_store_words(scratch->weights + i, code);
    }
}

/* Takes scores of a chunk into its readers' states and turns them into codes of weights. Weights are those in relation to
 * the chunk's largest score, so that they do not wait for the state. */
INLINE void soften(const int four, const int NUM, const readers *by, const chunk *c, const chunk_scratch *scratch, effects *out) {
    float top[LANES], inverse[LANES], none[STATE] = {0};
    float *states[4];
    vf before, sum_before;
    vf largest[4], products[4], sums[4];
    int is_whole[TOGETHER];
    const float most_code = c->bits == 8 ? MOST_BYTE : MOST_WEIGHT;
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) largest[r] = vf_set(-INFINITY), products[r] = sums[r] = vf_zero();
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) states[r] = r < NUM ? by->states[r] : none;
    vf_gather(states, &before, &sum_before);
#pragma GCC unroll 4
    for (int r = 0; r < NUM; r++) {
        float *scores = scratch->scores + r * CHUNK;
        is_whole[r] = by->first[r] <= 0 && by->last[r] >= CHUNK;
        largest[r] = is_whole[r] ? see(1, by, r, scores) : see(0, by, r, scores);
    }
    const vf tops = vf_mul(vf_largest_of(largest), vf_load(by->factors));
    vf_store(top, tops);
#pragma GCC unroll 4
    for (int r = 0; r < NUM; r++) {
        float *scores = scratch->scores + r * CHUNK;
        sums[r] = is_whole[r] ? weigh(1, by, r, c, scores, by->factors[r], top[r], products + r)
                              : weigh(0, by, r, c, scores, by->factors[r], top[r], products + r);
    }
    const vf most = vf_largest_size_of(products);
    vf_store(inverse, vf_div(vf_set(most_code), vf_max(most, vf_set(1e-30f))));
#pragma GCC unroll 4
    for (int r = 0; r < NUM; r++) {
        if (is_whole[r]) round_weights(four, 1, by, r, scratch, inverse[r]);
        else round_weights(four, 0, by, r, scratch, inverse[r]);
    }
    const vf highest = vf_max(before, tops);
    const vf shrink = vf_exp2(vf_sub(before, highest)), grow = vf_exp2(vf_sub(tops, highest));
    vf_store(out->shrink, shrink);
    vf_store(out->scale, vf_mul(grow, vf_mul(most, vf_set(1.0f / most_code))));
    vf_scatter(states, highest, vf_fma(sum_before, shrink, vf_mul(vf_sum_of(sums), grow)));
}

/* Adds VECTORS vectors of values, from dimension `d` on, times their weights to the sums of NUM readers. */
INLINE void add_values(const int bits, const int NUM, const int VECTORS, const int is_wide, const int four, const readers *by, const chunk *c,
                       int32_t dim, const chunk_scratch *scratch, int32_t d, const effects *by_chunk) {
    vi total[TOGETHER * 4];
#pragma GCC unroll 16
    for (int i = 0; i < NUM * VECTORS; i++) total[i] = vi_set(0);
    for (int k = 0; four && k < by->seen; k += 4) {
        vi value[4];
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; i++) value[i] = vi_load(scratch->values + k / 4 * dim + d + i * LANES);
#pragma GCC unroll 4
        for (int r = 0; r < NUM; r++) {
            const vi weight = vi_four((const uint8_t *)scratch->weights + r * CHUNK + k);
#pragma GCC unroll 4
            for (int i = 0; i < VECTORS; i++) total[r * VECTORS + i] = vi_dot_vectors(total[r * VECTORS + i], weight, value[i]);
        }
    }
    for (int k = 0; !four && k < by->seen; k += 2) {
        vi value[4];
#pragma GCC unroll 2
        for (int i = 0; i < VECTORS; i += 2) {
            const int32_t *open = scratch->values + k / 2 * dim + d + i * LANES;
            if (is_wide) {
                value[i] = vi_load(open), value[i + 1] = vi_load(open + LANES);
                continue;
            }
            const vi a = load_codes(bits, c->values + c->at->slots[k] * c->stride, d + i * LANES);
            const vi b = load_codes(bits, c->values + c->at->slots[k + 1] * c->stride, d + i * LANES);
            value[i] = vi_unpack_low(a, b), value[i + 1] = vi_unpack_high(a, b);
        }
        if (!is_wide && c->next) {
            prefetch_next(bits, c, c->values, k, d, VECTORS * LANES);
            prefetch_next(bits, c, c->values, k + 1, d, VECTORS * LANES);
        }
#pragma GCC unroll 4
        for (int r = 0; r < NUM; r++) {
            const vi weight = vi_four(scratch->weights + r * CHUNK + k);
#pragma GCC unroll 4
            for (int i = 0; i < VECTORS; i++) total[r * VECTORS + i] = vi_dot_pairs(total[r * VECTORS + i], value[i], weight);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < NUM; r++) {
        float *sums = by->states[r] + STATE + d;
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; i++) {
            const vf old = vf_mul(vf_load(sums + i * LANES), vf_set(by_chunk->shrink[r]));
            vf_store(sums + i * LANES, vf_fma(vi_float(total[r * VECTORS + i]), vf_set(by_chunk->scale[r]), old));
        }
    }
}

INLINE void attend(const int bits, const int NUM, const int is_wide, int32_t dim, const readers *by, const chunk *c,
                   const chunk_scratch *scratch) {
    const int narrow = is_wide && bits == 8, four = narrow && BYTE_WEIGHTS;
    effects by_chunk;
    if (!is_wide) score_few(bits, NUM, by, c, dim, scratch);
    else
        for (int first = 0; first < by->seen; first += 4 * LANES) {
            const int left = by->seen - first;
            if (left > 2 * LANES) score_wide(NUM, 4, narrow, by, c, dim, first, scratch);
            else score_wide(NUM, 2, narrow, by, c, dim, first, scratch);
        }
    soften(four, NUM, by, c, scratch, &by_chunk);
    int32_t d = 0;
    for (; d + 4 * LANES <= dim; d += 4 * LANES) add_values(bits, NUM, 4, is_wide, four, by, c, dim, scratch, d, &by_chunk);
    for (; d + 2 * LANES <= dim; d += 2 * LANES) add_values(bits, NUM, 2, is_wide, 0, by, c, dim, scratch, d, &by_chunk);
}

/* The commonest head sizes are known to the compiler. */
#define ATTEND(NUM)                                                                                      \
    static void attend_##NUM(const readers *by, const chunk *c, const chunk_scratch *scratch) {              \
        if (c->is_wide && is_narrow(c->bits, c->dim) && c->dim == 64) attend(8, NUM, 1, 64, by, c, scratch); \
        else if (c->is_wide && is_narrow(c->bits, c->dim)) attend(8, NUM, 1, c->dim, by, c, scratch);        \
        else if (c->is_wide && c->dim == 64) attend(16, NUM, 1, 64, by, c, scratch);                         \
        else if (c->is_wide) attend(16, NUM, 1, c->dim, by, c, scratch);                                     \
        else if (c->bits == 8) attend(8, NUM, 0, c->dim, by, c, scratch);                                    \
        else if (c->dim == 64) attend(16, NUM, 0, 64, by, c, scratch);                                       \
        else if (c->dim == 128) attend(16, NUM, 0, 128, by, c, scratch);                                     \
        else attend(16, NUM, 0, c->dim, by, c, scratch);                                                     \
    }

ATTEND(1)
ATTEND(2)
#if TOGETHER > 2
ATTEND(3)
ATTEND(4)
#endif

/* Takes a chunk into its readers' states. */
static void attend_chunk(const readers *by, const chunk *c, const chunk_scratch *scratch) {
    switch (by->num) {
        case 1: attend_1(by, c, scratch); break;
        case 2: attend_2(by, c, scratch); break;
#if TOGETHER > 2
        case 3: attend_3(by, c, scratch); break;
        case 4: attend_4(by, c, scratch); break;
#endif
    }
}

/* Rounds a head's numbers to codes from -most to most; returns their scale, which is not finite if they are not. */
INLINE float round_head(const float *x, int32_t dim, int32_t most, int bits, void *codes) {
    vf largest = vf_zero();
    for (int32_t i = 0; i < dim; i += LANES) largest = vf_max_size(largest, vf_abs(vf_load(x + i)));
    const float scale = vf_largest_size(largest) / (float)most;
    const vf inverse = vf_set(scale > 1e-30f ? 1.0f / scale : 0.0f);
    for (int32_t i = 0; i < dim; i += LANES) {
        const vi code = vf_int(vf_mul(vf_load(x + i), inverse));
        if (bits == 8) vi_store_bytes((int8_t *)codes + i, code);
        else vi_store_words((int16_t *)codes + i, code);
    }
    return scale;
}
