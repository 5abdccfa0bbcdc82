/* Tokens drawn from rows of logits, as kernels/sampling/reference.py draws them. */
#pragma once

#include "../bough_cpu.h"
#include "../pool.h"
#include "../simd/simd.h"
#include "../linear/hadamard.h"
#include "../linear/rounded.h"
#include "../linear/linear.h"
#include "../attention/chunk.h"
#include "../attention/plan.h"
#include "../attention/attention.h"
#include "logits.h"
#include "weigh.h"
#include "choose.h"

#include <math.h>
#include <stdint.h>

typedef unsigned __int128 wide_int;

/* SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"). */
static uint64_t splitmix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

/* The random number of a row in units of 2^-53: of (seed, position) and nothing else, so that a request draws the same
 * alone, in any batch, after a retraction, and on any machine. */
static uint64_t random_bits(const bough_draw *row) { return splitmix(splitmix(row->seed) ^ (uint64_t)row->position) >> 11; }

/* bits / 2^53 of `total`, without its fraction. */
static int64_t part_of(int64_t total, uint64_t bits) { return (int64_t)((wide_int)total * bits >> 53); }

/* The place at which the running sum of weights passes `*wanted`, which loses what comes before. */
static int32_t place_of(const int64_t *weights, int64_t *wanted) {
    int32_t place = 0;
    while (*wanted >= weights[place]) *wanted -= weights[place++];
    return place;
}

enum { BLOCK = 512 }; /* logits whose weights are added up before the place is sought among them */

/* A place drawn of all logits. */
static int32_t pick_of_all(const float *x, int32_t num, weighing by, uint64_t bits, choice *c) {
    int64_t total = 0;
    for (int32_t i = 0; i < num; i += BLOCK) {
        c->masses[i / BLOCK] = weigh_logits(x + i, num - i < BLOCK ? num - i : BLOCK, by, NULL);
        total += c->masses[i / BLOCK];
    }
    int64_t wanted = part_of(total, bits);
    const int32_t block = place_of(c->masses, &wanted);
    x += block * BLOCK, num -= block * BLOCK;
    weigh_logits(x, num < BLOCK ? num : BLOCK, by, c->weights);
    return block * BLOCK + place_of(c->weights, &wanted);
}

/* The same, from rough sums; -1 if a token more than one might be meant. */
static int32_t pick_roughly(const float *x, int32_t num, weighing by, uint64_t bits, choice *c) {
    double total = 0.0, before = 0.0, *sums = (double *)c->masses;
    for (int32_t i = 0; i < num; i += BLOCK) {
        sums[i / BLOCK] = weigh_roughly(x + i, num - i < BLOCK ? num - i : BLOCK, by);
        total += sums[i / BLOCK];
    }
    const double wanted = total * ((double)bits * 0x1p-53);
    int32_t block = 0;
    while ((block + 1) * BLOCK < num && before + sums[block] <= wanted) before += sums[block++];
    const double doubt = (wanted + before) * DOUBT + 2.0;
    x += block * BLOCK, num = num - block * BLOCK < BLOCK ? num - block * BLOCK : BLOCK;
    weigh_logits(x, num, by, c->weights);
    int64_t low = (int64_t)floor(wanted - before - doubt), high = (int64_t)ceil(wanted - before + doubt);
    if (low < 0) return -1;
    for (int32_t place = 0; place < num; place++) {
        if (low < c->weights[place]) return high < c->weights[place] ? block * BLOCK + place : -1;
        low -= c->weights[place], high -= c->weights[place];
    }
    return -1;
}

/* total * part rounded up, at least 1; 0 <= part < 1 */
static int64_t share_of(int64_t total, float part) {
    int exponent;
    const int64_t numerator = (int64_t)ldexpf(frexpf(part, &exponent), 24);
    const int shift = 24 - exponent;
    if (shift > 96) return 1;
    const int64_t goal = (int64_t)(((wide_int)total * (wide_int)numerator + (((wide_int)1 << shift) - 1)) >> shift);
    return goal > 1 ? goal : 1;
}

/* Chooses of `x`, or of the `listed` of `c`, what top-p keeps of a mass of `low` .. `high` (closed); returns how many,
 * weighed, or 0 if that is not the same for all of these. */
static int32_t choose_share(const float *x, int32_t num, int32_t listed, int64_t low, int64_t high, float top_p, weighing by,
                            choice *c) {
    const int64_t goal = share_of(low, top_p), last_goal = share_of(high, top_p);
    if (last_goal > low) return 0;
    int32_t among = listed;
    /* What weighs less than a part of the rest, in as many parts as there are logits, is not needed to reach the goal;
     * mostly larger parts will do. */
    int64_t mass = listed ? last_goal : 0;
    for (int64_t parts = 256; mass < last_goal; parts *= 16) {
        among = choose_above(x, num, logit_below((double)(low - last_goal) / (double)(parts < num ? parts : num), by), c);
        mass = weigh_logits(c->values, among, by, c->weights);
        if (parts >= num || low < high) break; /* tokens that weigh less are no clear case */
    }
    if (mass < last_goal) return 0;
    int64_t above, of_one = 1, num_equal = 0;
    const float cut = find_cut(c->values, c->weights, among, goal, &above, c);
    for (int32_t i = 0; i < among; i++)
        if (c->values[i] == cut) num_equal++, of_one = c->weights[i] > 1 ? c->weights[i] : 1;
    int64_t equal = (goal - above + of_one - 1) / of_one;
    const int64_t last_equal = (last_goal - above + of_one - 1) / of_one;
    if (equal < last_equal || (goal < last_goal && last_equal > num_equal)) return 0;
    int32_t left = 0;
    for (int32_t i = 0; i < among; i++) {
        if (c->values[i] < cut || (c->values[i] == cut && equal-- <= 0)) continue;
        c->weights[left] = c->weights[i], c->places[left++] = c->places[i];
    }
    return left;
}

/* Chooses what top-p keeps, of the `listed` of `c` if there are some, else of all of `x`; returns how many, weighed. */
static int32_t choose_mass(const float *x, int32_t num, int32_t listed, float top_p, weighing by, choice *c) {
    if (!listed) {
        double rough = 0.0;
        for (int32_t i = 0; i < num; i += BLOCK) rough += weigh_roughly(x + i, num - i < BLOCK ? num - i : BLOCK, by);
        const double doubt = rough * DOUBT + 2.0;
        const int32_t kept = choose_share(x, num, 0, (int64_t)(rough - doubt), (int64_t)(rough + doubt), top_p, by, c);
        if (kept) return kept;
    }
    const int64_t total = listed ? weigh_logits(c->values, listed, by, c->weights) : weigh_logits(x, num, by, NULL);
    return choose_share(x, num, listed, total, total, top_p, by, c);
}

/* A place among logits of which the one at `top` is the largest, and finite. */
static int32_t draw_place(const float *x, int32_t num, float top, const bough_draw *row, choice *c) {
    const weighing by = weighing_of(top, (float)row->temperature);
    const uint64_t bits = random_bits(row);
    int32_t kept = 0;
    if (row->top_k > 0 && row->top_k < num) choose_largest(x, num, kept = row->top_k, c);
    else if (row->top_p >= 1.0f && row->min_p > 0.0f) kept = choose_above(x, num, logit_below(row->min_p * ONE, by), c);
    if (row->top_p < 1.0f) kept = choose_mass(x, num, kept, row->top_p, by, c);
    else if (kept) weigh_logits(c->values, kept, by, c->weights);
    else {
        const int32_t place = pick_roughly(x, num, by, bits, c);
        return place < 0 ? pick_of_all(x, num, by, bits, c) : place;
    }
    const int64_t least = (int64_t)(row->min_p * ONE);
    int64_t total = 0;
    for (int32_t i = 0; i < kept; i++) total += c->weights[i] = c->weights[i] < least ? 0 : c->weights[i];
    int64_t wanted = part_of(total, bits);
    return c->places[place_of(c->weights, &wanted)];
}

/* What the model itself says: of the row's largest logit and the sum of exponentials, and of its likeliest tokens. */
static void score_line(const float *x, int32_t num, int32_t place, const bough_sampling *all, int32_t index, choice *c) {
    bough_draw *row = all->rows + index;
    row->raw_top = x[place];
    row->raw_sum = sum_exp(x, num, x[place]);
    const int32_t count = row->num_likeliest < num ? row->num_likeliest : num;
    if (!count) return;
    int32_t *tokens = all->likeliest + (int64_t)index * BOUGH_LIKELIEST;
    float *values = all->likeliest_logits + (int64_t)index * BOUGH_LIKELIEST;
    choose_largest(x, num, count, c);
    for (int32_t i = 0; i < count; i++) { /* in order, of equal ones the first first */
        int32_t at = i;
        for (; at && values[at - 1] < c->values[i]; at--) values[at] = values[at - 1], tokens[at] = tokens[at - 1];
        values[at] = c->values[i], tokens[at] = c->places[i];
    }
}

/* Penalties, bias and bans of a row, in place; returns whether there are any. What the tokens had is left in `edits`. */
static int edit_line(float *x, const bough_draw *row, bough_edit *edits) {
    for (int32_t i = row->first_repeated; i < row->last_edit; i++) {
        const float old = x[edits[i].token];
        if (i >= row->first_added) x[edits[i].token] = old + edits[i].change;
        else x[edits[i].token] = old > 0.0f ? old / edits[i].change : old * edits[i].change;
        edits[i].change = old;
    }
    return row->first_repeated < row->last_edit;
}

/* What the model gave the token before it was edited. */
static float unedited(const float *x, const bough_draw *row, const bough_edit *edits, int32_t token) {
    for (int32_t i = row->first_repeated; i < row->last_edit; i++)
        if (edits[i].token == token) return edits[i].change;
    return x[token];
}

/* Copies the logits that a mask allows into the line of `c` if they are few; returns how many, or -1. */
static int32_t narrow_line(const float *x, int32_t num, const uint32_t *mask, choice *c) {
    const int32_t words = (num + 31) / 32;
    int32_t allowed = 0;
    for (int32_t i = 0; i < words; i++) allowed += __builtin_popcount(mask[i]);
    if (allowed > num / 16) return -1;
    int32_t found = 0;
    for (int32_t i = 0; i < words; i++)
        for (uint32_t bits = mask[i]; bits; bits &= bits - 1) {
            const int32_t token = i * 32 + __builtin_ctz(bits);
            if (token < num) c->line[found] = x[token], c->tokens[found++] = token;
        }
    return found;
}

/* Sets what a mask does not allow to -infinity. */
static void forbid_in(float *x, int32_t num, const uint8_t *mask) {
    int32_t i = 0;
    for (; i + LANES <= num; i += LANES) {
        uint32_t bits = 0;
        __builtin_memcpy(&bits, mask + i / 8, LANES / 8);
        vf_store(x + i, vf_allowed(vf_load(x + i), bits));
    }
    for (; i < num; i++)
        if (!(mask[i / 8] >> i % 8 & 1)) x[i] = -INFINITY;
}

static void sample_row(const bough_sampling *all, int32_t index, choice *c) {
    const int32_t vocab = all->vocab;
    bough_draw *row = all->rows + index;
    float *line = all->logits + (int64_t)index * vocab;
    int finite;
    int32_t place = find_largest(line, vocab, &finite);
    row->token = -1;
    if (!finite) return;
    if (row->asks & BOUGH_SCORE) score_line(line, vocab, place, all, index, c);
    if (row->asks & BOUGH_TARGET) {
        row->token = place;
        return;
    }
    const int edited = edit_line(line, row, all->edits);
    const float *x = line;
    int32_t num = vocab;
    if (row->mask >= 0) {
        const uint32_t *mask = all->masks + (int64_t)row->mask * ((vocab + 31) / 32);
        const int32_t allowed = row->asks & BOUGH_SCORE ? -1 : narrow_line(line, vocab, mask, c);
        if (allowed < 0) forbid_in(line, vocab, (const uint8_t *)mask);
        else x = c->line, num = allowed;
        if (!num) return;
    }
    if (edited || row->mask >= 0) place = find_largest(x, num, &finite);
    const float top = x[place];
    if (!isfinite(top)) return;
    if (row->temperature != 0.0 && num > 1) place = draw_place(x, num, top, row, c);
    row->token = x == line ? place : c->tokens[place];
    if (row->asks & BOUGH_SCORE) {
        row->raw = unedited(line, row, all->edits, row->token);
        row->final = line[place], row->final_top = top;
        row->final_sum = sum_exp(line, vocab, top);
    }
}

typedef struct {
    bough_pool *pool;
    const bough_sampling *all;
} sampling_task;

static void sample_some(void *context, int32_t thread) {
    const sampling_task *task = context;
    const bough_sampling *all = task->all;
    choice c = choice_at(all->workspace + thread * choice_bytes(all->vocab), all->vocab);
    for (int32_t row; (row = bough_pool_next(task->pool, thread, all->num_rows)) < all->num_rows;) sample_row(all, row, &c);
}

static void sample_rows(bough_pool *pool, const bough_sampling *all) {
    enum { WORTH = 6 }; /* rows for which waking threads is worth it; a draw is as much work as three */
    int32_t work = 0;
    for (int32_t row = 0; row < all->num_rows; row++) work += all->rows[row].asks || all->rows[row].temperature != 0.0 ? 3 : 1;
    if (pool && work >= WORTH) {
        sampling_task task = {pool, all};
        bough_pool_run(pool, sample_some, &task);
        return;
    }
    choice c = choice_at(all->workspace, all->vocab);
    for (int32_t row = 0; row < all->num_rows; row++) sample_row(all, row, &c);
}

static int64_t sampling_bytes(int32_t num_threads, int32_t vocab) { return num_threads * choice_bytes(vocab); }
