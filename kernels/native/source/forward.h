/* All layers over a batch: what each thread does between one barrier and the next. */
#pragma once

#include "bough_cpu.h"
#include "pool.h"
#include "simd/simd.h"
#include "simd/functions.h"
#include "linear/tiles.h"
#include "linear/hadamard.h"
#include "linear/rounded.h"
#include "linear/linear.h"
#include "attention/chunk.h"
#include "attention/plan.h"
#include "attention/attention.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* When threads have rows of their own: rows of a batch at least, times the square of the threads; rows that a
 * thread takes at most; and panels that it multiplies at a time. */
enum { OWN_ROWS = 16, MOST_OWN_ROWS = 256, OWN_PANELS = 2 };

/* Which groups get rests (rounded.h): of what goes into queries, keys and values, and into gate and up, those whose scales,
 * squared, are above so many times their row's mean; of what comes out of the activation, those whose scales are above that
 * part of the hidden state's root mean square. Chosen by what they lose: docs/decisions/0036-rests-of-rounding.md. */
#define QKV_SHARE 5.0f
#define GATE_SHARE 10.0f
#define DOWN_SHARE 0.003f

/* Logits get the rests of groups that are above such a share, too, but only in panels whose largest is at most so far below
 * their row's largest, and in at most one of so many panels. */
#define HEAD_SHARE 0.5f
#define NEAR 6.0f
enum { NEAR_PANELS = 64 };

typedef struct {
    bough_pool *pool;
    const bough_model *model;
    const bough_cache *cache;
    const bough_batch *batch, *whole; /* whole: with the rows that `kept` leaves out */
    float *hidden;      /* [tokens][hidden] */
    float *qkv;         /* [tokens][(heads + 2 kv_heads) head_dim] */
    int16_t *queries;   /* [tokens][heads][head_dim] */
    float *query_scales; /* [tokens][heads] */
    int8_t *narrow;      /* queries in 8 bits, if the cache has 8: [tokens][heads][head_dim] */
    int32_t *query_sums; /* of them, [tokens][heads] */
    rounded input;      /* the hidden states, normed: [tokens][hidden] */
    rounded last;       /* the same of the rows that have logits, for the head, in the same memory */
    rounded attended;   /* [tokens][heads head_dim] */
    rounded expanded;   /* [tokens][intermediate] */
    float *limits;      /* [tokens]: scales of `expanded` above them get rests */
    rest_run *runs;     /* of each thread [blocks of rows][groups] */
    int32_t *num_runs;  /* of each thread [blocks of rows] */
    int64_t most_blocks, most_groups; /* of rows that a thread multiplies, and of their inputs */
    float *peaks;       /* [logits][peaks_stride(head)]: the largest logit of each panel */
    uint32_t *near;     /* [logits][num_words(head)]: bits of the panels that are refined */
    float *partials;    /* states of blocks that are split */
    attention_plan plan;
    bough_batch kept;   /* of the batch, the rows whose logits are asked for, in the last layer's second half */
    uint8_t *scratch;   /* of all threads */
    int64_t scratch_bytes;
    float *logits;
    double began_s; /* only if seconds are asked for */
} forward;

/* Rows of the batch that a stage computes. Private ones are one thread's: it does all of a stage's items for them and goes
 * on. Else all threads share the items, and meet at a barrier at the end. */
typedef struct {
    int32_t start, stop, is_private, num_done;
} span;

/* Where faults of a layer are marked; num_layers: of what follows the last one. */
INLINE fault_log log_of(const forward *f, int32_t layer) {
    const int is_part = f->batch != f->whole || layer == f->model->num_layers;
    return (fault_log){f->whole->faults, is_part ? f->whole->logit_rows : 0, layer};
}

INLINE int32_t next_item(const forward *f, int32_t thread, span *rows, int32_t num_items) {
    if (!rows->is_private) return bough_pool_next(f->pool, thread, num_items);
    return rows->num_done < num_items ? rows->num_done++ : num_items;
}

INLINE void end_stage(const forward *f, span *rows) {
    if (!rows->is_private) bough_pool_wait(f->pool);
    rows->num_done = 0;
}

/* Distance to the thread's next item, as a rule. */
INLINE int32_t items_ahead(const forward *f, const span *rows) { return rows->is_private ? 1 : bough_pool_size(f->pool); }

/* Panels of an item of a product: few enough that all threads end together. */
static int32_t panels_per_item(const forward *f, int32_t num_panels, int32_t num_rows, int is_private) {
    if (is_private) return OWN_PANELS;
    const int32_t fair = num_panels / (bough_pool_size(f->pool) * (num_rows > 8 ? 12 : 6));
    return fair < 1 ? 1 : fair > PANELS ? PANELS : fair;
}

/* Finds the rests of the rows that a thread is to multiply. */
static void find_rests(const forward *f, int32_t thread, const rounded *x, const span *rows) {
    if (!x->rests) return;
    rest_run *runs = f->runs + thread * f->most_blocks * f->most_groups;
    int32_t *num = f->num_runs + thread * f->most_blocks;
    for (int32_t row = rows->start; row < rows->stop; row += BLOCK_OF_ROWS, runs += f->most_groups)
        *num++ = list_rests(x, row, rows->stop - row < BLOCK_OF_ROWS ? rows->stop - row : BLOCK_OF_ROWS, runs);
}

/* What find_rests has found of the block of rows that begins at `row`. */
INLINE block_rests rests_at(const forward *f, int32_t thread, const rounded *x, const span *rows, int32_t row) {
    if (!x->rests) return (block_rests){0, 0};
    const int64_t block = thread * f->most_blocks + (row - rows->start) / BLOCK_OF_ROWS;
    return (block_rests){f->runs + block * f->most_groups, f->num_runs[block]};
}

/* Panels that are refined are marked by the bits of a word. */
enum { WORD = 32 };

INLINE int32_t num_words(const bough_weight *head) { return (num_panels_of(head) + WORD - 1) / WORD; }

/* Numbers between the peaks of one row and of the next; no multiple of a page, at which lines would drive each other out. */
INLINE int64_t peaks_stride(const bough_weight *head) { return (num_words(head) + 1) * WORD; }

/* y (+)= x W^T + b for weights whose outputs follow one another in y's rows. Of one weight, `peaks`, if it is not NULL,
 * gets each panel's largest outputs. */
static void multiply_stage(const forward *f, int32_t thread, const bough_weight *weights, int32_t num_weights, const rounded *x,
                           span *rows, float *y, int add, float *peaks) {
    const int32_t num_rows = rows->stop - rows->start;
    int32_t num_panels = 0, stride = 0;
    for (int32_t i = 0; i < num_weights; i++) num_panels += num_panels_of(weights + i), stride += weights[i].rows;
    const int32_t size = panels_per_item(f, num_panels, num_rows, rows->is_private);
    const int32_t num_items = (num_panels + size - 1) / size;
    find_rests(f, thread, x, rows);
    for (int32_t item; (item = next_item(f, thread, rows, num_items)) < num_items;) {
        const int32_t num = num_panels - item * size < size ? num_panels - item * size : size;
        uint8_t *memory = f->scratch + thread * f->scratch_bytes;
        panel panels[PANELS];
        for (int32_t i = 0; i < num; i++) {
            panels[i] = find_panel(weights, item * size + i);
            memory = unpack_panel(panels + i, num_rows, memory);
            prefetch_panel(panels + i, weights, (item + items_ahead(f, rows)) * size + i, num_panels, num_rows);
        }
        for (int32_t row = rows->start; row < rows->stop; row += BLOCK_OF_ROWS) {
            const int32_t num_together = rows->stop - row < BLOCK_OF_ROWS ? rows->stop - row : BLOCK_OF_ROWS;
            const block_rests rests = rests_at(f, thread, x, rows, row);
            for (int32_t i = 0; i < num; i++)
                multiply_panel(panels + i, x, row, num_together, rests, y + (int64_t)row * stride + panels[i].column, stride, add);
            for (int32_t r = row; peaks && r < row + num_together; r++)
                find_peaks(panels, num, y + (int64_t)r * stride, peaks + r * peaks_stride(weights));
        }
    }
    end_stage(f, rows);
}

/* silu(gate) * up of all tokens, rounded. */
static void expand_stage(const forward *f, int32_t thread, const bough_weight *gate, const bough_weight *up, span *rows,
                         const fault_log *log) {
    const int32_t width = group_size(&f->expanded), num_panels = width / LANES;
    const int32_t num_items = f->model->intermediate / width, num_rows = rows->stop - rows->start;
    find_rests(f, thread, &f->input, rows);
    for (int32_t item; (item = next_item(f, thread, rows, num_items)) < num_items;) {
        uint8_t *memory = f->scratch + thread * f->scratch_bytes;
        panel panels[2][BOUGH_BLOCK / LANES];
        for (int32_t i = 0; i < 2 * num_panels; i++) {
            panel *at = panels[i / num_panels] + i % num_panels;
            const bough_weight *weight = i < num_panels ? gate : up;
            *at = find_panel(weight, item * num_panels + i % num_panels);
            memory = unpack_panel(at, num_rows, memory);
            const int32_t next = (item + items_ahead(f, rows)) * num_panels + i % num_panels;
            prefetch_panel(at, weight, next, num_items * num_panels, num_rows);
        }
        for (int32_t row = rows->start; row < rows->stop; row += BLOCK_OF_ROWS) {
            _Alignas(64) float numbers[2][BLOCK_OF_ROWS * BOUGH_BLOCK];
            const int32_t num = rows->stop - row < BLOCK_OF_ROWS ? rows->stop - row : BLOCK_OF_ROWS;
            const block_rests rests = rests_at(f, thread, &f->input, rows, row);
            for (int32_t i = 0; i < 2 * num_panels; i++)
                multiply_panel(panels[i / num_panels] + i % num_panels, &f->input, row, num, rests,
                               numbers[i / num_panels] + i % num_panels * LANES, width, 0);
            for (int32_t i = 0; i < num * width; i += LANES)
                vf_store(numbers[0] + i, vf_mul(vf_silu(vf_load(numbers[0] + i)), vf_load(numbers[1] + i)));
            for (int32_t r = 0; r < num; r += 4) {
                to_round from[4];
                for (int32_t i = 0; i < 4; i++) from[i] = (to_round){numbers[0] + (r + i) * width, row + r + i, item};
                round_numbers(from, num - r < 4 ? num - r : 4, &f->expanded, log);
                if (f->expanded.rests) mark_rows(from, num - r < 4 ? num - r : 4, f->limits, &f->expanded);
            }
        }
    }
    end_stage(f, rows);
}

/* NaN where squares are too large to be added. */
INLINE float norm_factor(const float *x, int32_t size, float eps) {
    vf squares[16 / LANES] = {vf_zero()};
    for (int32_t i = 0; i < size; i += LANES) {
        vf *own = squares + i / LANES % (16 / LANES);
        *own = vf_fma(vf_load(x + i), vf_load(x + i), *own);
    }
    const float sum = vf_sum(vf_folded(squares));
    return isfinite(sum) ? 1.0f / sqrtf(sum / (float)size + eps) : NAN;
}

/* RMSNorm of a token's hidden state, rounded into row `row`; groups that are above `share` of it get rests. Returns what the
 * state was multiplied with. */
static float norm_row(const forward *f, int32_t thread, int64_t token, const float *weight, float share, const rounded *out,
                      int64_t row, const fault_log *log) {
    const float *x = f->hidden + token * f->model->hidden;
    float *normed = (float *)(f->scratch + thread * f->scratch_bytes);
    const float factor = norm_factor(x, f->model->hidden, f->model->norm_eps);
    for (int32_t i = 0; i < f->model->hidden; i += LANES)
        vf_store(normed + i, vf_mul(vf_mul(vf_load(x + i), vf_set(factor)), vf_load(weight + i)));
    if (out->form == IN_ROWS) round_whole(normed, out, row, log);
    else round_row(normed, f->model->hidden / group_size(out), out, row, 0, log);
    if (out->rests) mark_row(normed, share, out, row);
    return factor;
}

static void norm_stage(const forward *f, int32_t thread, const float *weight, float share, span *rows, const fault_log *log) {
    enum { ROWS = 4 };
    const int32_t num_items = (rows->stop - rows->start + ROWS - 1) / ROWS;
    for (int32_t item; (item = next_item(f, thread, rows, num_items)) < num_items;) {
        const int32_t first = rows->start + item * ROWS;
        for (int32_t row = first; row < first + ROWS && row < rows->stop; row++)
            f->limits[row] = DOWN_SHARE / norm_row(f, thread, row, weight, share, &f->input, row, log);
    }
    end_stage(f, rows);
}

/* A head's norm, if the model has it, and rotation by its position, in place. */
static void norm_and_rotate_head(const forward *f, float *x, const float *norm, const float *cos, const float *sin) {
    const int32_t dim = f->model->head_dim, half = dim / 2;
    if (norm) {
        const vf factor = vf_set(norm_factor(x, dim, f->model->norm_eps));
        for (int32_t i = 0; i < dim; i += LANES) vf_store(x + i, vf_mul(vf_mul(vf_load(x + i), factor), vf_load(norm + i)));
    }
    if (!cos) return;
    for (int32_t i = 0; i < half; i += LANES) {
        const vf left = vf_load(x + i), right = vf_load(x + half + i), c = vf_load(cos + i), s = vf_load(sin + i);
        vf_store(x + i, vf_sub(vf_mul(left, c), vf_mul(right, s)));
        vf_store(x + half + i, vf_fma(right, c, vf_mul(left, s)));
    }
}

/* Spreads what is large in few dimensions of a query or a key, so that 8 bits lose less; their products stay. */
static void mix_head(float *x, int32_t dim) {
    for (int32_t d = 0; d < dim && dim % BOUGH_BLOCK == 0; d += BOUGH_BLOCK) {
        vf mixed[BLOCK_VECTORS];
        mix(x + d, mixed);
        for (int i = 0; i < BLOCK_VECTORS; i++) vf_store(x + d + i * LANES, vf_mul(mixed[i], vf_set(0.125f)));
    }
}

/* Rounds a head's query: to 8 bits if that is what keys have, and then as numbers of 16, too. */
static void round_query(const forward *f, const float *q, int64_t at) {
    const int32_t dim = f->model->head_dim;
    int16_t *codes = f->queries + at * dim;
    int8_t *narrow = f->narrow + at * dim;
    vi sums = vi_set(0);
    if (f->cache->bits == 8) {
        f->query_scales[at] = round_head(q, dim, 127, 8, narrow);
        for (int32_t d = 0; d < dim; d += 2 * LANES) {
            const vi words = vi_widen_bytes((const uint8_t *)narrow + d);
            vi_store(codes + d, words);
            sums = vi_dot_pairs(sums, words, vi_set(0x10001));
        }
    } else f->query_scales[at] = round_head(q, dim, MOST_QUERY, 16, codes);
    f->query_sums[at] = vi_total(sums);
}

/* Rotates queries and keys, rounds them and values, and stores keys and values. Any scale that is not finite is a fault. */
static void store_stage(const forward *f, int32_t thread, const bough_layer *layer, int32_t index, span *rows) {
    const bough_model *model = f->model;
    const bough_cache *cache = f->cache;
    const int32_t dim = model->head_dim, heads = model->num_heads, kv_heads = model->num_kv_heads, half = dim / 2;
    const int32_t most = cache->bits == 8 ? 127 : MOST_STORED;
    const int32_t num_items = rows->stop - rows->start;
    const fault_log log = log_of(f, index);
    for (int32_t item; (item = next_item(f, thread, rows, num_items)) < num_items;) {
        const int32_t row = rows->start + item;
        float fault = 0.0f; /* NaN from the first one on */
        float *q = f->qkv + (int64_t)row * (heads + 2 * kv_heads) * dim, *k = q + heads * dim, *v = k + kv_heads * dim;
        const int64_t position = f->batch->positions[row], slot = index * cache->num_slots + f->batch->write_slot[row];
        const float *cos = layer->rotates ? model->cos + position * half : 0, *sin = layer->rotates ? model->sin + position * half : 0;
        for (int32_t head = 0; head < heads; head++) {
            const int64_t at = (int64_t)row * heads + head;
            norm_and_rotate_head(f, q + head * dim, layer->query_norm, cos, sin);
            if (cache->bits == 8) mix_head(q + head * dim, dim);
            round_query(f, q + head * dim, at);
            fault += 0.0f * f->query_scales[at];
        }
        for (int32_t head = 0; head < kv_heads; head++) {
            const int64_t at = (slot * kv_heads + head) * dim * cache->bits / 8;
            float *scales = cache->scales + slot * 2 * kv_heads + head;
            norm_and_rotate_head(f, k + head * dim, layer->key_norm, cos, sin);
            if (cache->bits == 8) mix_head(k + head * dim, dim);
            scales[0] = round_head(k + head * dim, dim, most, cache->bits, cache->keys + at);
            scales[kv_heads] = round_head(v + head * dim, dim, most, cache->bits, cache->values + at);
            fault += 0.0f * scales[0] + 0.0f * scales[kv_heads];
        }
        if (fault != 0.0f) mark_fault(&log, row);
    }
    end_stage(f, rows);
}

/* The states that a thread needs at most. */
INLINE int64_t num_states(const bough_model *model) {
    const int64_t wide = BLOCK_ROWS * (int64_t)queries_per_head(model), few = FEW * (int64_t)model->num_kv_heads;
    return wide > few ? wide : few;
}

static attention_scratch find_scratch(const forward *f, int32_t thread) {
    const int32_t dim = f->model->head_dim;
    const int64_t states_size = num_states(f->model) * (STATE + dim);
    float *at = (float *)(f->scratch + thread * f->scratch_bytes);
    attention_scratch scratch;
    scratch.chunk.keys = (int32_t *)at, at += dim / 2 * CHUNK;
    scratch.chunk.values = (int32_t *)at, at += dim / 2 * CHUNK;
    scratch.chunk.scores = at, at += TOGETHER * CHUNK;
    scratch.chunk.weights = (int16_t *)at, at += TOGETHER * CHUNK / 2;
    scratch.totals = at, at += states_size;
    scratch.states = at;
    return scratch;
}

INLINE int64_t attention_bytes(const bough_model *model) {
    const int64_t dim = model->head_dim;
    return 4 * (dim * CHUNK + TOGETHER * 3 * CHUNK / 2 + 2 * num_states(model) * (STATE + dim));
}

static void attention_stage(const forward *f, const bough_layer *layer, int32_t index, int32_t thread) {
    const bough_model *model = f->model;
    const int64_t slot = index * f->cache->num_slots;
    const int64_t start = slot * model->num_kv_heads * model->head_dim * f->cache->bits / 8;
    const attention_scratch scratch = find_scratch(f, thread);
    const attention_layer whole = {.model = model, .cache = f->cache, .batch = f->batch, .plan = &f->plan,
                                   .queries = f->queries, .query_scales = f->query_scales, .narrow = f->narrow,
                                   .query_sums = f->query_sums, .window = layer->window,
                                   .keys = f->cache->keys + start, .values = f->cache->values + start,
                                   .scales = f->cache->scales + slot * 2 * model->num_kv_heads,
                                   .log = log_of(f, index)};
    const block *at = f->plan.blocks, *stop = at + f->plan.num_blocks, *ahead;
    for (int32_t item; (item = bough_pool_next(f->pool, thread, f->plan.num_items)) < f->plan.num_items;) {
        if (item < at->first_item) at = f->plan.blocks;
        while (item >= at->first_item + at->num_items) at++;
        const int32_t number = item - at->first_item, parts = model->num_kv_heads / at->num_heads;
        const int32_t head = number % parts * at->num_heads, split = number / parts;
        ahead = at + bough_pool_size(f->pool);
        const work part = {.block = at, .head_start = head, .head_stop = head + at->num_heads,
                           .ahead = parts == 1 && ahead < stop && !layer->window ? ahead : 0,
                           .from = split * SPLIT, .to = at->num_splits > 1 ? (split + 1) * SPLIT : INT32_MAX};
        attend_block(&whole, &part, split, f->partials, &scratch, &f->attended);
    }
    bough_pool_wait(f->pool);
    if (!f->plan.num_partials) return;
    const int32_t num_merges = f->plan.num_blocks * model->num_kv_heads;
    for (int32_t item; (item = bough_pool_next(f->pool, thread, num_merges)) < num_merges;) {
        at = f->plan.blocks + item / model->num_kv_heads;
        if (at->num_splits > 1) merge_block(&whole, item % model->num_kv_heads, at, f->partials, &f->attended);
    }
    bough_pool_wait(f->pool);
}

static double clock_s(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Adds the time since `*since` to a stage, if the batch counts seconds; the first thread's time stands for all. */
INLINE void record_stage(const forward *f, int32_t thread, int stage, double *since) {
    if (thread || !f->batch->seconds) return;
    const double now = clock_s();
    f->batch->seconds[stage] += now - *since;
    *since = now;
}

/* True if rows can be left out once the last layer's keys and values are stored. */
static int has_idle_rows(const bough_batch *batch) {
    for (int32_t i = 1; i < batch->num_logits; i++)
        if (batch->logit_rows[i] <= batch->logit_rows[i - 1]) return 0;
    return batch->num_logits < batch->num_tokens;
}

/* Leaves only the rows whose logits are asked for: `kept` becomes the batch, and what is computed of them moves up. */
static void drop_idle_rows(forward *f) {
    const bough_batch *batch = f->batch;
    const bough_model *model = f->model;
    const int32_t heads = model->num_heads, dim = model->head_dim, num = batch->num_logits;
    int64_t *positions = (int64_t *)f->kept.positions, *rows = (int64_t *)f->kept.logit_rows;
    int32_t *query_start = (int32_t *)f->kept.query_start;
    int32_t sequence = 0;
    for (int32_t i = 0; i < num; i++) {
        const int64_t row = batch->logit_rows[i];
        for (; batch->query_start[sequence] <= row; sequence++) query_start[sequence] = i;
        positions[i] = batch->positions[row];
        rows[i] = i;
        memmove(f->hidden + (int64_t)i * model->hidden, f->hidden + row * model->hidden, (size_t)model->hidden * sizeof(float));
        memmove(f->queries + (int64_t)i * heads * dim, f->queries + row * heads * dim, (size_t)(heads * dim) * sizeof(int16_t));
        memmove(f->query_scales + (int64_t)i * heads, f->query_scales + row * heads, (size_t)heads * sizeof(float));
        memmove(f->narrow + (int64_t)i * heads * dim, f->narrow + row * heads * dim, (size_t)(heads * dim));
        memmove(f->query_sums + (int64_t)i * heads, f->query_sums + row * heads, (size_t)heads * sizeof(int32_t));
    }
    for (; sequence <= batch->num_sequences; sequence++) query_start[sequence] = num;
    f->batch = &f->kept;
    make_plan(&f->plan, f->batch, f->cache->page_size, heads, model->num_kv_heads, bough_pool_size(f->pool));
}

/* All stages from what attention of layer `index - 1` has left to the stored keys and values of layer `index`. */
static void layer_stages(const forward *f, int32_t thread, int32_t index, span *rows, double *since) {
    const bough_model *model = f->model;
    if (index > 0) {
        const bough_layer *layer = model->layers + index - 1;
        const fault_log log = log_of(f, index - 1);
        multiply_stage(f, thread, &layer->out, 1, &f->attended, rows, f->hidden, 1, 0);
        record_stage(f, thread, BOUGH_OUT, since);
        norm_stage(f, thread, layer->post_norm, GATE_SHARE, rows, &log);
        record_stage(f, thread, BOUGH_NORM, since);
        expand_stage(f, thread, &layer->gate, &layer->up, rows, &log);
        record_stage(f, thread, BOUGH_EXPAND, since);
        multiply_stage(f, thread, &layer->down, 1, &f->expanded, rows, f->hidden, 1, 0);
        record_stage(f, thread, BOUGH_DOWN, since);
    }
    if (index < model->num_layers) {
        const bough_layer *layer = model->layers + index;
        const fault_log log = log_of(f, index);
        norm_stage(f, thread, layer->input_norm, QKV_SHARE, rows, &log);
        record_stage(f, thread, BOUGH_NORM, since);
        multiply_stage(f, thread, &layer->query, 3, &f->input, rows, f->qkv, 0, 0);
        record_stage(f, thread, BOUGH_QKV, since);
        store_stage(f, thread, layer, index, rows);
        record_stage(f, thread, BOUGH_STORE, since);
    }
}

/* The same of all rows. With many, each thread takes some through all stages: what a stage makes stays in the cache of its
 * core, and nobody waits, but each thread reads all weights, so that reading over multiplying grows with the square of their
 * number. With few rows, all threads share each stage, and its weights. */
static void run_layer_stages(const forward *f, int32_t thread, int32_t index, double *since) {
    const int32_t num_rows = f->batch->num_tokens, num_threads = bough_pool_size(f->pool);
    if (num_threads == 1 || num_rows < num_threads * num_threads * OWN_ROWS) {
        layer_stages(f, thread, index, &(span){.stop = num_rows}, since);
        return;
    }
    const int32_t num_each = (num_rows + num_threads - 1) / num_threads, num_parts = (num_each + MOST_OWN_ROWS - 1) / MOST_OWN_ROWS;
    const int32_t num_items = num_threads * num_parts, size = ((num_rows + num_items - 1) / num_items + 3) / 4 * 4;
    for (int32_t item; (item = bough_pool_next(f->pool, thread, num_items)) < num_items;) {
        const int32_t start = item * size < num_rows ? item * size : num_rows, stop = num_rows - start < size ? num_rows : start + size;
        layer_stages(f, thread, index, &(span){.start = start, .stop = stop, .is_private = 1}, since);
    }
    bough_pool_wait(f->pool);
}

/* -- logits near the largest ----------------------------------------------------------------------------------------- */

/* How many of some numbers, in whole words, are at least `limit`. */
static int32_t count_at_least(const float *numbers, int32_t num, float limit) {
    int32_t count = 0;
    for (int32_t i = 0; i < num; i += LANES) count += __builtin_popcount(vf_at_least(vf_load(numbers + i), vf_set(limit)));
    return count;
}

/* Marks the panels of row `row` whose logits are refined: those with the largest peaks. All variants refine the same
 * logits: 16 at a time, which are two panels of 8 lanes with one peak. */
static void mark_near(const forward *f, int32_t row) {
    enum { STEPS = 8, HALVES = 16 / LANES };
    const bough_weight *head = &f->model->head;
    const int32_t num_panels = num_panels_of(head), num = num_words(head) * WORD;
    const int32_t most = ((num_panels + HALVES - 1) / HALVES / NEAR_PANELS + 1) * HALVES;
    float *peaks = f->peaks + row * peaks_stride(head), near = NEAR;
    vf largest = vf_set(-INFINITY);
    for (int32_t i = num_panels; i < num; i++) peaks[i] = -INFINITY;
    for (int32_t i = 0; i < num && HALVES == 2; i += 2) peaks[i] = peaks[i + 1] = fmaxf(peaks[i], peaks[i + 1]);
    for (int32_t i = 0; i < num; i += LANES) largest = vf_max(vf_load(peaks + i), largest);
    const float top = vf_largest(largest);
    if (count_at_least(peaks, num, top - near) > most) { /* bisects to the distance that leaves as many */
        near = 0.0f;
        for (float step = 0.5f * NEAR; step > NEAR / (1 << STEPS); step *= 0.5f)
            if (count_at_least(peaks, num, top - near - step) <= most) near += step;
    }
    for (int32_t i = 0; i < num; i += WORD) {
        uint32_t word = 0;
        for (int32_t k = 0; k < WORD; k += LANES) word |= vf_at_least(vf_load(peaks + i + k), vf_set(top - near)) << k;
        f->near[(int64_t)row * num_words(head) + i / WORD] = word;
    }
}

/* Adds rests to a panel's logits of the `wanted` ones of some rows, whose `rests` these are. */
static void refine_panel(const forward *f, int32_t index, int32_t row, int32_t num_rows, uint32_t wanted, block_rests rests,
                         rest_run *memory) {
    int32_t num = 0;
    for (int32_t i = 0; i < rests.num; i++) {
        memory[num] = (rest_run){rests.runs[i].group, rests.runs[i].rows & wanted};
        num += memory[num].rows != 0;
    }
    const panel at = find_panel(&f->model->head, index);
    const int64_t stride = f->model->vocab;
    add_rests_to(&at, &f->last, row, num_rows, (block_rests){memory, num}, f->logits + row * stride + at.column, stride);
}

/* Adds what rounding the last hidden states has left to the logits that count: once the largest of each row are known. */
static void refine_stage(const forward *f, int32_t thread, span *rows) {
    const bough_weight *head = &f->model->head;
    const int32_t num_items = num_words(head);
    rest_run *memory = (rest_run *)(f->scratch + thread * f->scratch_bytes);
    for (int32_t row; (row = next_item(f, thread, rows, rows->stop)) < rows->stop;) mark_near(f, row);
    end_stage(f, rows);
    find_rests(f, thread, &f->last, rows);
    for (int32_t item; (item = next_item(f, thread, rows, num_items)) < num_items;)
        for (int32_t row = 0; row < rows->stop; row += BLOCK_OF_ROWS) {
            const int32_t num = rows->stop - row < BLOCK_OF_ROWS ? rows->stop - row : BLOCK_OF_ROWS;
            const uint32_t *words = f->near + (int64_t)row * num_items + item;
            uint32_t any = 0;
            for (int32_t r = 0; r < num; r++) any |= words[r * num_items];
            for (; any; any &= any - 1) {
                const int32_t bit = __builtin_ctz(any), index = item * WORD + bit;
                uint32_t wanted = 0;
                for (int32_t r = 0; r < num; r++) wanted |= (words[r * num_items] >> bit & 1) << r;
                if (index < num_panels_of(head))
                    refine_panel(f, index, row, num, wanted, rests_at(f, thread, &f->last, rows, row), memory);
            }
        }
    end_stage(f, rows);
}

static void run(void *context, int32_t thread) {
    forward *f = context;
    const bough_model *model = f->model;
    const int32_t num_tokens = f->batch->num_tokens, num_logits = f->batch->num_logits;
    const int has_idle = has_idle_rows(f->batch);
    double since = f->began_s;
    record_stage(f, thread, BOUGH_PLAN, &since);
    for (int32_t row; (row = bough_pool_next(f->pool, thread, num_tokens)) < num_tokens;)
        read_row(&model->embedding, f->batch->tokens[row], f->hidden + (int64_t)row * model->hidden);
    bough_pool_wait(f->pool);
    run_layer_stages(f, thread, 0, &since);
    for (int32_t index = 0; index < model->num_layers; index++) {
        if (has_idle && index == model->num_layers - 1) {
            if (!num_logits) return;
            if (!thread) drop_idle_rows(f);
            bough_pool_wait(f->pool);
        }
        attention_stage(f, model->layers + index, index, thread);
        record_stage(f, thread, BOUGH_ATTENTION, &since);
        run_layer_stages(f, thread, index + 1, &since);
    }
    const fault_log log = log_of(f, model->num_layers);
    for (int32_t row; (row = bough_pool_next(f->pool, thread, num_logits)) < num_logits;)
        norm_row(f, thread, f->batch->logit_rows[row], model->norm, HEAD_SHARE, &f->last, row, &log);
    bough_pool_wait(f->pool);
    rounded coarse = f->last;
    coarse.rests = 0;
    span rows = {.stop = num_logits};
    multiply_stage(f, thread, &model->head, 1, &coarse, &rows, f->logits, 0, f->last.rests ? f->peaks : 0);
    if (f->last.rests) refine_stage(f, thread, &rows);
    record_stage(f, thread, BOUGH_HEAD, &since);
}

/* -- memory ------------------------------------------------------------------------------------------------------ */

typedef struct {
    uint8_t *at;
    int64_t used;
} arena;

static void *arena_alloc(arena *memory, int64_t num_bytes) {
    void *start = memory->at ? memory->at + memory->used : 0;
    memory->used += (num_bytes + 63) / 64 * 64;
    return start;
}

/* Memory for what is multiplied by `weight`, whose groups may have rests. */
static rounded arena_alloc_rows(arena *memory, int64_t rows, const bough_weight *weight, int has_rests) {
    const int64_t groups = weight->columns / BOUGH_GROUP;
    rounded made = {.columns = weight->columns, .form = form_for(weight), .num_rows = rows};
    made.groups = arena_alloc(memory, (rows + 3) / 4 * groups * (int64_t)sizeof(rounded_group));
    if (!has_rests || made.form != IN_GROUPS) return made;
    made.rests = arena_alloc(memory, rows * groups * (int64_t)sizeof(group_rest));
    made.marks = arena_alloc(memory, rows * groups);
    return made;
}

/* Unpacked panels of the widest weights. */
static int64_t panels_bytes_of(const bough_model *model) {
    const int32_t heads = model->num_heads * model->head_dim;
    int32_t most = model->hidden > model->intermediate ? model->hidden : model->intermediate;
    most = most > heads ? most : heads;
    const int64_t one_by_one = PANELS * unpacked_bytes(most), pairs = 2 * BOUGH_BLOCK / LANES * unpacked_bytes(model->hidden);
    return one_by_one > pairs ? one_by_one : pairs;
}

INLINE int64_t most_of(int64_t a, int64_t b) { return a > b ? a : b; }

/* Lays out what a batch of that size needs, from the start of `memory`. */
static void lay_out(forward *f, arena *memory, int32_t num_threads, int64_t num_tokens, int64_t num_sequences, int64_t num_logits) {
    const bough_model *model = f->model;
    const int64_t dim = model->head_dim;
    const int64_t rows = num_tokens > num_logits ? num_tokens : num_logits;
    f->hidden = arena_alloc(memory, num_tokens * model->hidden * 4);
    f->qkv = arena_alloc(memory, num_tokens * (model->num_heads + 2 * model->num_kv_heads) * dim * 4);
    f->queries = arena_alloc(memory, num_tokens * model->num_heads * dim * 2);
    f->query_scales = arena_alloc(memory, num_tokens * model->num_heads * 4);
    f->narrow = arena_alloc(memory, num_tokens * model->num_heads * dim);
    f->query_sums = arena_alloc(memory, num_tokens * model->num_heads * 4);
    f->last = f->input = arena_alloc_rows(memory, rows, &model->layers->query, model->has_rests);
    if (f->input.form == IN_BLOCKS) f->input.form = IN_ROWS;
    f->last.form = form_for(&model->head);
    if (f->last.form != IN_GROUPS) f->last.rests = 0;
    f->attended = arena_alloc_rows(memory, num_tokens, &model->layers->out, 0);
    f->expanded = arena_alloc_rows(memory, num_tokens, &model->layers->down, model->has_rests);
    f->limits = arena_alloc(memory, rows * 4);
    f->most_blocks = (rows + BLOCK_OF_ROWS - 1) / BLOCK_OF_ROWS;
    f->most_groups = most_of(model->hidden, model->intermediate) / BOUGH_GROUP;
    f->runs = arena_alloc(memory, num_threads * f->most_blocks * f->most_groups * (int64_t)sizeof(rest_run));
    f->num_runs = arena_alloc(memory, num_threads * f->most_blocks * 4);
    f->peaks = arena_alloc(memory, num_logits * peaks_stride(&model->head) * 4);
    f->near = arena_alloc(memory, num_logits * num_words(&model->head) * 4);
    f->plan.order = arena_alloc(memory, num_sequences * 4);
    f->plan.common = arena_alloc(memory, num_sequences * 4);
    f->plan.row_start = arena_alloc(memory, (num_sequences + 1) * 4);
    f->plan.rows = arena_alloc(memory, num_tokens * 4);
    f->plan.blocks = arena_alloc(memory, num_tokens * (int64_t)sizeof(block));
    f->kept.positions = arena_alloc(memory, num_logits * 8);
    f->kept.logit_rows = arena_alloc(memory, num_logits * 8);
    f->kept.query_start = arena_alloc(memory, (num_sequences + 1) * 4);
    const int64_t refined = f->most_groups * (int64_t)sizeof(rest_run);
    f->scratch_bytes = (most_of(most_of(panels_bytes_of(model), attention_bytes(model)), refined) + 63) / 64 * 64;
    f->scratch = arena_alloc(memory, f->scratch_bytes * num_threads);
}

static void forward_pass(bough_pool *pool, const bough_model *model, const bough_cache *cache, const bough_batch *batch,
                         uint8_t *workspace, float *logits) {
    const int32_t num_threads = bough_pool_size(pool);
    forward f = {.pool = pool, .model = model, .cache = cache, .batch = batch, .whole = batch, .logits = logits};
    if (batch->seconds) f.began_s = clock_s();
    arena memory = {.at = workspace};
    f.kept = *batch;
    f.kept.num_tokens = batch->num_logits;
    lay_out(&f, &memory, num_threads, batch->num_tokens, batch->num_sequences, batch->num_logits);
    make_plan(&f.plan, batch, cache->page_size, model->num_heads, model->num_kv_heads, num_threads);
    f.partials = arena_alloc(&memory, 0); /* all that is left */
    bough_pool_run(pool, run, &f);
}

/* Enough for any batch of that size: blocks are split only while there are fewer than 4 * num_threads items. */
static int64_t workspace_bytes(const bough_model *model, int32_t num_threads, int32_t num_tokens, int32_t num_logits) {
    forward f = {.model = model};
    arena memory = {0};
    lay_out(&f, &memory, num_threads, num_tokens, num_tokens, num_logits);
    const int64_t splits = model->num_positions / (SPLIT * CHUNK) + 1, per_kv = model->num_heads / model->num_kv_heads;
    return memory.used + 4 * num_threads * 8 * per_kv * splits * (STATE + model->head_dim) * 4;
}

/* -- one product by itself ---------------------------------------------------------------------------------------- */

typedef struct {
    forward base;
    const bough_weight *weight;
    const float *x;
    float *y;
    rounded rows;
    int32_t num_rows;
} one_product;

static void run_product(void *context, int32_t thread) {
    const one_product *p = context;
    const fault_log nowhere = {0};
    for (int32_t row; (row = bough_pool_next(p->base.pool, thread, p->num_rows)) < p->num_rows;) {
        const float *x = p->x + (int64_t)row * p->weight->columns;
        round_row(x, p->weight->columns / group_size(&p->rows), &p->rows, row, 0, &nowhere);
        if (p->rows.rests) mark_row(x, QKV_SHARE, &p->rows, row);
    }
    bough_pool_wait(p->base.pool);
    multiply_stage(&p->base, thread, p->weight, 1, &p->rows, &(span){.stop = p->num_rows}, p->y, 0, 0);
}

static void lay_out_product(one_product *p, arena *memory) {
    const int64_t num_threads = bough_pool_size(p->base.pool);
    p->base.most_blocks = (p->num_rows + BLOCK_OF_ROWS - 1) / BLOCK_OF_ROWS;
    p->base.most_groups = p->weight->columns / BOUGH_GROUP;
    p->base.scratch_bytes = PANELS * unpacked_bytes(p->weight->columns);
    p->base.scratch = arena_alloc(memory, num_threads * p->base.scratch_bytes);
    p->base.runs = arena_alloc(memory, num_threads * p->base.most_blocks * p->base.most_groups * (int64_t)sizeof(rest_run));
    p->base.num_runs = arena_alloc(memory, num_threads * p->base.most_blocks * 4);
    p->rows = arena_alloc_rows(memory, p->num_rows, p->weight, 1);
}

static void multiply_rows(bough_pool *pool, const bough_weight *weight, const float *x, int32_t num_rows, float *y) {
    one_product p = {.base = {.pool = pool}, .weight = weight, .x = x, .y = y, .num_rows = num_rows};
    arena sizes = {0};
    lay_out_product(&p, &sizes);
    uint8_t *memory = aligned_alloc(64, (size_t)sizes.used);
    if (!memory) return;
    lay_out_product(&p, &(arena){.at = memory});
    bough_pool_run(pool, run_product, &p);
    free(memory);
}
