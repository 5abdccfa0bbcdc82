/* Attention over pages: chunks taken from multiples of CHUNK positions.
 *
 * So what a query sums, and in which order, does not depend on what shares its prefix, on how many queries there are, or
 * on how many threads. A chunk that several sequences share is read once for all of them. Online softmax: Milakov and
 * Gimelshein 2018 (arXiv 1805.02867); after SPLIT chunks a new sum begins, merged with those before (Dao et al. 2023,
 * Flash-Decoding).
 *
 * Bound: memory, for few queries a key; else two vectors of pairs multiplied a cycle (on processors with VNNI). */
#pragma once

#include "../bough_cpu.h"
#include "../simd/simd.h"
#include "../simd/functions.h"
#include "../linear/hadamard.h"
#include "../linear/rounded.h"
#include "../linear/linear.h"
#include "chunk.h"
#include "plan.h"

#include <math.h>
#include <stdint.h>

typedef struct {
    const bough_model *model;
    const bough_cache *cache;
    const bough_batch *batch;
    const attention_plan *plan;
    const uint8_t *keys, *values; /* of the layer */
    const float *scales;
    const int16_t *queries;     /* [num_tokens][num_heads][head_dim] */
    const int8_t *narrow;       /* the same in 8 bits, if the cache has 8 */
    const int32_t *query_sums;  /* of them, [num_tokens][num_heads] */
    const float *query_scales;  /* [num_tokens][num_heads] */
    int32_t window;
    fault_log log;
} attention_layer;

typedef struct {
    chunk_scratch chunk;
    float *totals, *states; /* [heads][rows * per_kv][STATE + head_dim] */
} attention_scratch;

/* Part of a block's work: key-value heads head_start .. head_stop and chunks from .. to. */
typedef struct {
    const block *block, *ahead; /* ahead: what this thread is likely to do next, or NULL */
    int32_t head_start, head_stop, from, to;
} work;

INLINE int32_t queries_per_head(const bough_model *model) { return model->num_heads / model->num_kv_heads; }

/* Finds a chunk's positions in a sequence. */
static void locate(const attention_layer *layer, int32_t sequence, int32_t index, places *at) {
    const int64_t page_size = layer->cache->page_size;
    const int32_t *table = layer->batch->page_table + (int64_t)sequence * layer->batch->table_width;
    const int32_t start = index * CHUNK, left = layer->batch->context_len[sequence] - start;
    at->num = left < CHUNK ? left : CHUNK;
    for (int i = 0; i < at->num; i++) {
        const int32_t position = start + i;
        at->slots[i] = page_size == 1 ? table[position] : table[position / page_size] * page_size + position % page_size;
    }
    for (int i = at->num; i < CHUNK; i++) at->slots[i] = at->slots[at->num - 1];
}

/* The first chunk that a query at `position` sees. */
INLINE int32_t first_chunk(const attention_layer *layer, int32_t position) {
    return layer->window && position >= layer->window ? (position - layer->window + 1) / CHUNK : 0;
}

static void clear_states(float *states, int64_t num, int32_t dim) {
    for (int64_t i = 0; i < num; i++) {
        float *state = states + i * (STATE + dim);
        state[0] = -INFINITY;
        state[1] = 0.0f;
        for (int32_t d = 0; d < dim; d += LANES) vf_store(state + STATE + d, vf_zero());
    }
}

/* Merges a sum into the total of those before it; the sum of weights of what has seen no key is 0. */
static void merge(float *total, const float *state, int32_t dim) {
    if (state[1] == 0.0f) return;
    const int is_first = total[1] == 0.0f;
    const float largest = fmaxf(total[0], state[0]);
    const float left = is_first ? 0.0f : exp2_of(total[0] - largest), right = is_first ? 1.0f : exp2_of(state[0] - largest);
    total[0] = largest;
    total[1] = is_first ? state[1] : total[1] * left + state[1] * right;
    for (int32_t d = STATE; d < STATE + dim; d += LANES) {
        const vf own = vf_mul(vf_load(state + d), vf_set(right));
        vf_store(total + d, is_first ? own : vf_fma(vf_load(total + d), vf_set(left), own));
    }
}

/* Takes a chunk into its readers' states; then there are none. */
static void see_chunk(readers *by, const chunk *c, const chunk_scratch *scratch) {
    by->seen = 0;
    for (int r = 0; r < by->num; r++) by->seen = by->last[r] > by->seen ? by->last[r] : by->seen;
    if (by->seen > c->at->num) by->seen = c->at->num;
    attend_chunk(by, c, scratch);
    by->num = 0;
}

/* A head's part of a chunk, seen by the planned rows row_start .. row_stop, whose states begin at `states`. */
static void attend_rows(const attention_layer *layer, const chunk *c, int32_t head, int32_t index, int32_t row_start,
                        int32_t row_stop, float *states, const chunk_scratch *scratch) {
    const bough_model *model = layer->model;
    const int32_t per_kv = queries_per_head(model);
    const float scale = model->scale * 1.44269504f; /* scores are base 2 */
    readers by = {.num = 0, .factors = {0}};
    for (int32_t i = row_start; i < row_stop; i++) {
        const int32_t row = layer->plan->rows[i], position = (int32_t)layer->batch->positions[row];
        const int32_t low = (layer->window && position >= layer->window ? position - layer->window + 1 : 0) - index * CHUNK;
        const int32_t high = position + 1 - index * CHUNK;
        for (int32_t k = 0; k < per_kv; k++, states += STATE + c->dim) {
            if (high > 0 && low < CHUNK) {
                const int64_t query = (int64_t)row * model->num_heads + head * per_kv + k;
                by.queries[by.num] = layer->queries + query * c->dim;
                by.narrow[by.num] = layer->narrow + query * c->dim;
                by.sums[by.num] = layer->query_sums[query];
                by.factors[by.num] = scale * layer->query_scales[query];
                by.states[by.num] = states;
                by.first[by.num] = low;
                by.last[by.num++] = high < CHUNK ? high : CHUNK;
            }
            if (by.num == TOGETHER) see_chunk(&by, c, scratch);
        }
    }
    see_chunk(&by, c, scratch);
}

/* Chunk `index` of a sequence for all heads of `part`; `next`: places that are read after it, or NULL. */
static void attend_heads(const attention_layer *layer, const work *part, int32_t index, const places *at, const places *next,
                         int32_t row_start, int32_t row_stop, const attention_scratch *scratch) {
    const int32_t dim = layer->model->head_dim, per_kv = queries_per_head(layer->model), kv_heads = layer->model->num_kv_heads;
    const int32_t bits = layer->cache->bits;
    const int64_t num = part->block->row_stop - part->block->row_start, own = row_start - part->block->row_start;
    for (int32_t head = part->head_start; head < part->head_stop; head++) {
        const int64_t start = (int64_t)head * dim * bits / 8;
        chunk c = {.keys = layer->keys + start, .values = layer->values + start, .at = at, .next = next, .bits = bits,
                   .stride = (int64_t)kv_heads * dim * bits / 8, .dim = dim, .is_wide = (row_stop - row_start) * per_kv > FEW};
        if (next) c.pace = (next->num + at->num - 1) / at->num;
        for (int i = 0; i < (at->num + LANES - 1) / LANES * LANES; i++) {
            const float *scales = layer->scales + at->slots[i] * 2 * kv_heads + head;
            c.key_scales[i] = scales[0], c.value_scales[i] = scales[kv_heads];
        }
        for (int i = 0; next && head == part->head_start && i < next->num; i++)
            __builtin_prefetch(layer->scales + next->slots[i] * 2 * kv_heads);
        float *states = scratch->states + ((head - part->head_start) * num + own) * per_kv * (STATE + dim);
        if (c.is_wide && is_narrow(bits, dim)) open_chunk(8, 1, &c, &scratch->chunk);
        else if (c.is_wide && bits == 8) open_chunk(8, 0, &c, &scratch->chunk);
        else if (c.is_wide) open_chunk(16, 0, &c, &scratch->chunk);
        attend_rows(layer, &c, head, index, row_start, row_stop, states, &scratch->chunk);
    }
}

/* Merges the sums of the planned rows row_start .. row_stop into their totals. */
static void end_split(const attention_layer *layer, const work *part, int32_t row_start, int32_t row_stop,
                      const attention_scratch *scratch) {
    const int32_t per_kv = queries_per_head(layer->model), size = STATE + layer->model->head_dim;
    const int64_t num = part->block->row_stop - part->block->row_start, own = row_start - part->block->row_start;
    for (int32_t head = 0; head < part->head_stop - part->head_start; head++)
        for (int64_t i = (head * num + own) * per_kv; i < (head * num + own + row_stop - row_start) * per_kv; i++)
            merge(scratch->totals + i * size, scratch->states + i * size, layer->model->head_dim),
                clear_states(scratch->states + i * size, 1, layer->model->head_dim);
}

/* The planned sequences start .. stop, which share the chunks before `from`: what they all share next, and then each part
 * that shares more by itself. */
static void attend_tree(const attention_layer *layer, const work *part, int32_t start, int32_t stop, int32_t from,
                        const attention_scratch *scratch) {
    const attention_plan *plan = layer->plan;
    const block *whole = part->block;
    const int32_t row_start = start == whole->start ? whole->row_start : plan->row_start[start];
    const int32_t row_stop = stop == whole->stop ? whole->row_stop : plan->row_start[stop];
    int32_t oldest = INT32_MAX, newest = 0, shared = INT32_MAX;
    for (int32_t i = row_start; i < row_stop; i++) {
        const int32_t position = (int32_t)layer->batch->positions[plan->rows[i]];
        if (position < oldest) oldest = position;
        if (position > newest) newest = position;
    }
    for (int32_t i = start + 1; i < stop; i++)
        if (plan->common[i] < shared) shared = plan->common[i];
    int32_t end = shared < newest / CHUNK + 1 ? shared : newest / CHUNK + 1;
    if (end > part->to) end = part->to;
    const int32_t first = first_chunk(layer, oldest);
    places at[2];
    int32_t index = from > first ? from : first;
    if (index < end) locate(layer, plan->order[start], index, at + index % 2);
    for (; index < end; index++) {
        places *next = at + (index + 1) % 2;
        if (index + 1 < end) locate(layer, plan->order[start], index + 1, next);
        else if (part->ahead) locate(layer, plan->order[part->ahead->start], 0, next);
        else next = 0;
        attend_heads(layer, part, index, at + index % 2, next, row_start, row_stop, scratch);
        if ((index + 1) % SPLIT == 0 && whole->num_splits == 1) end_split(layer, part, row_start, row_stop, scratch);
    }
    for (int32_t begin = start, i = start + 1; stop - start > 1 && i <= stop; i++)
        if (i == stop || plan->common[i] <= shared) {
            attend_tree(layer, part, begin, i, shared > from ? shared : from, scratch);
            begin = i;
        }
}

/* Results that are still to be rounded for the product that follows. */
typedef struct {
    float numbers[4][BOUGH_BLOCK];
    to_round groups[4];
    int num;
    const fault_log *log;
} pending;

static void round_pending(pending *rows, const rounded *out) {
    if (rows->num) round_numbers(rows->groups, rows->num, out, rows->log);
    rows->num = 0;
}

/* A query's attention, from all its sums. */
static void finish_query(const float *total, int64_t row, int32_t head, int32_t dim, pending *rows, const rounded *out) {
    const vf inverse = vf_set(1.0f / total[1]);
    const int32_t size = group_size(out);
    for (int32_t d = 0; d < dim; d += size) {
        float *numbers = rows->numbers[rows->num];
        for (int32_t i = 0; i < size; i += 2 * LANES) {
            const float *apart = total + STATE + d + i;
            vf_store_packed(numbers + i, vf_mul(vf_load(apart), inverse), vf_mul(vf_load(apart + LANES), inverse));
        }
        rows->groups[rows->num++] = (to_round){numbers, row, (head * dim + d) / size};
        if (rows->num == 4) round_pending(rows, out);
    }
}

/* One part of a block; `split` of it, if it has several. */
static void attend_block(const attention_layer *layer, const work *part, int32_t split, float *partials,
                         const attention_scratch *scratch, const rounded *out) {
    const block *whole = part->block;
    const int32_t dim = layer->model->head_dim, per_kv = queries_per_head(layer->model);
    const int64_t num = (int64_t)(whole->row_stop - whole->row_start) * per_kv, size = STATE + dim;
    const int64_t all = num * (part->head_stop - part->head_start);
    clear_states(scratch->states, all, dim);
    if (whole->num_splits > 1) {
        attend_tree(layer, part, whole->start, whole->stop, part->from, scratch);
        float *to = partials + (whole->partial + (split * layer->model->num_kv_heads + part->head_start) * num) * size;
        for (int64_t i = 0; i < all * size; i++) to[i] = scratch->states[i];
        return;
    }
    for (int64_t i = 0; i < all; i++) scratch->totals[i * size] = -INFINITY, scratch->totals[i * size + 1] = 0.0f;
    attend_tree(layer, part, whole->start, whole->stop, 0, scratch);
    pending rows = {.num = 0, .log = &layer->log};
    for (int64_t i = 0; i < all; i++) {
        const int32_t head = part->head_start + (int32_t)(i / num);
        float *total = scratch->totals + i * size, *state = scratch->states + i * size;
        if (total[1] == 0.0f) total = state;
        else merge(total, state, dim);
        finish_query(total, layer->plan->rows[whole->row_start + i % num / per_kv], (int32_t)(head * per_kv + i % per_kv), dim, &rows, out);
    }
    round_pending(&rows, out);
}

/* Merges the splits of a block for one key-value head. */
static void merge_block(const attention_layer *layer, int32_t head, const block *item, float *partials, const rounded *out) {
    const bough_model *model = layer->model;
    const attention_plan *plan = layer->plan;
    const int32_t dim = model->head_dim, per_kv = queries_per_head(model);
    const int64_t num = (int64_t)(item->row_stop - item->row_start) * per_kv, size = STATE + dim;
    pending rows = {.num = 0, .log = &layer->log};
    for (int64_t i = 0; i < num; i++) {
        float total[STATE + MOST_HEAD_DIM] = {-INFINITY};
        for (int32_t split = 0; split < item->num_splits; split++)
            merge(total, partials + (item->partial + (split * model->num_kv_heads + head) * num + i) * size, dim);
        finish_query(total, plan->rows[item->row_start + i / per_kv], (int32_t)(head * per_kv + i % per_kv), dim, &rows, out);
    }
    round_pending(&rows, out);
}
