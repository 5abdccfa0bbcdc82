/* Which queries are attended to together: sequences sorted so that those with a common prefix are neighbours. */
#pragma once

#include "../bough_cpu.h"
#include "chunk.h"

#include <stdint.h>

enum { SPLIT = 16, BLOCK_ROWS = 32, FEW = 2 * TOGETHER };

/* Work for one thread: planned sequences start .. stop and of their rows row_start .. row_stop. */
typedef struct {
    int32_t start, stop, row_start, row_stop;
    int32_t num_heads;  /* key-value heads that an item has */
    int32_t num_splits; /* more than 1: every SPLIT chunks of the context are an item of their own */
    int32_t first_item, num_items;
    int64_t partial;    /* where the states of its splits are */
} block;

typedef struct {
    int32_t *order;     /* [num_sequences]: sequences, sorted by their pages */
    int32_t *common;    /* [num_sequences]: whole chunks that each shares with the one before it */
    int32_t *row_start; /* [num_sequences + 1]: into rows */
    int32_t *rows;      /* [num_tokens]: the batch's rows, sequence by sequence in that order */
    block *blocks;      /* [num_tokens] */
    int32_t num_blocks, num_items, num_sequences;
    int64_t num_partials;
} attention_plan;

/* How many leading pages two sequences share. */
static int32_t common_pages(const bough_batch *batch, int32_t page_size, int32_t left, int32_t right) {
    const int32_t *a = batch->page_table + (int64_t)left * batch->table_width;
    const int32_t *b = batch->page_table + (int64_t)right * batch->table_width;
    const int32_t len = batch->context_len[left] < batch->context_len[right] ? batch->context_len[left] : batch->context_len[right];
    int32_t num = 0;
    while (num < len / page_size && a[num] == b[num]) num++;
    return num;
}

/* Sorts the sequences by their pages, keeping the order of equals: a merge from neighbours up. */
static void sort_sequences(const bough_batch *batch, int32_t page_size, int32_t *order, int32_t *spare) {
    const int32_t num = batch->num_sequences;
    for (int32_t i = 0; i < num; i++) order[i] = i;
    for (int32_t width = 1; width < num; width *= 2) {
        for (int32_t start = 0; start < num; start += 2 * width) {
            const int32_t middle = start + width < num ? start + width : num, stop = middle + width < num ? middle + width : num;
            for (int32_t i = start, j = middle, k = start; k < stop; k++) {
                int takes_right = i == middle;
                if (i < middle && j < stop) {
                    const int32_t a = order[i], b = order[j], same = common_pages(batch, page_size, a, b);
                    const int32_t a_pages = batch->context_len[a] / page_size, b_pages = batch->context_len[b] / page_size;
                    takes_right = same < b_pages && same < a_pages
                        ? batch->page_table[(int64_t)b * batch->table_width + same] < batch->page_table[(int64_t)a * batch->table_width + same]
                        : b_pages < a_pages;
                }
                spare[k] = takes_right ? order[j++] : order[i++];
            }
        }
        for (int32_t i = 0; i < num; i++) order[i] = spare[i];
    }
}

/* Fills a plan whose arrays have been allocated; `common` serves as spare memory first. */
static void make_plan(attention_plan *plan, const bough_batch *batch, int32_t page_size, int32_t num_heads, int32_t num_kv_heads,
                      int32_t num_threads) {
    const int32_t num = batch->num_sequences;
    sort_sequences(batch, page_size, plan->order, plan->common);
    plan->num_sequences = num;
    plan->common[0] = 0;
    for (int32_t i = 1; i < num; i++)
        plan->common[i] = common_pages(batch, page_size, plan->order[i - 1], plan->order[i]) * page_size / CHUNK;
    int32_t num_rows = 0;
    for (int32_t i = 0; i < num; i++) {
        plan->row_start[i] = num_rows;
        for (int32_t row = batch->query_start[plan->order[i]]; row < batch->query_start[plan->order[i] + 1]; row++) plan->rows[num_rows++] = row;
    }
    plan->row_start[num] = num_rows;
    /* Blocks as large as leaves work for every thread. */
    int32_t most = num_rows * num_kv_heads / (4 * num_threads);
    most = most < 4 ? 4 : most > BLOCK_ROWS ? BLOCK_ROWS : most;
    plan->num_blocks = 0;
    for (int32_t start = 0, stop; start < num; start = stop) {
        stop = start + 1;
        while (stop < num && plan->common[stop] > 0 && plan->row_start[stop + 1] - plan->row_start[start] <= most) stop++;
        for (int32_t row = plan->row_start[start]; row < plan->row_start[stop]; row += BLOCK_ROWS) {
            const int32_t row_stop = row + BLOCK_ROWS < plan->row_start[stop] ? row + BLOCK_ROWS : plan->row_start[stop];
            plan->blocks[plan->num_blocks++] = (block){
                .start = start, .stop = stop, .row_start = row, .row_stop = row_stop, .num_heads = 1, .num_splits = 1, .num_items = num_kv_heads};
        }
    }
    /* With few blocks, the parts of a long context are items of their own; with many, all heads are one item. */
    const int many = plan->num_blocks >= 4 * num_threads, few = plan->num_blocks * num_kv_heads < 4 * num_threads;
    plan->num_partials = plan->num_items = 0;
    for (int32_t i = 0; i < plan->num_blocks; plan->num_items += plan->blocks[i++].num_items) {
        block *at = plan->blocks + i;
        at->first_item = plan->num_items;
        const int32_t splits = (batch->context_len[plan->order[at->start]] + SPLIT * CHUNK - 1) / (SPLIT * CHUNK);
        const int64_t num_own = at->row_stop - at->row_start;
        if (at->stop - at->start > 1 || num_own * (num_heads / num_kv_heads) > FEW) continue;
        if (many) at->num_heads = num_kv_heads, at->num_items = 1;
        if (!few || splits < 2) continue;
        at->num_splits = splits;
        at->num_items = splits * num_kv_heads;
        at->partial = plan->num_partials;
        plan->num_partials += num_own * num_heads * splits;
    }
}
