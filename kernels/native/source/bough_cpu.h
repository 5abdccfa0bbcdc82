/* The interface of the CPU library: one call runs all layers of a decoder over a batch.
 *
 * Numbers of a token never depend on what else is in the batch: every product sums its groups of 32 inputs in order,
 * every attention sums its keys in order, in chunks that begin at multiples of CHUNK positions. */
#pragma once

#include <stdint.h>

#define BOUGH_GROUP 32 /* inputs that share a scale */
#define BOUGH_BLOCK 64 /* inputs that are mixed, with BOUGH_HADAMARD */

/* How a weight is stored, as a sum of these: see tiles.h. */
enum {
    BOUGH_BITS4 = 0, BOUGH_BITS8 = 1, BOUGH_MINIMUM = 2, BOUGH_WIDE = 4, BOUGH_HALVES = 8, BOUGH_BITS6 = 16,
    BOUGH_NESTED = 32, BOUGH_UNPACKED = 64, BOUGH_HADAMARD = 128
};

/* A matrix of `rows` outputs and `columns` inputs in tiles; `bias` is NULL or float[rows]. */
typedef struct {
    int32_t format, rows, columns, unused;
    const uint8_t *tiles;
    const float *bias;
} bough_weight;

typedef struct {
    const float *input_norm, *post_norm; /* [hidden] */
    const float *query_norm, *key_norm;  /* [head_dim] or NULL */
    bough_weight query, key, value, out, gate, up, down;
    int32_t rotates, window; /* window: newest keys that a query sees; 0: all */
} bough_layer;

typedef struct {
    int32_t num_layers, num_heads, num_kv_heads, head_dim, hidden, intermediate, vocab, num_positions;
    int32_t has_rests, unused; /* whether activations far above the others of their token have 16 bits: linear/rounded.h */
    float norm_eps, scale;
    const float *cos, *sin; /* [num_positions, head_dim / 2] */
    const float *norm;      /* [hidden] */
    bough_weight embedding, head;
    const bough_layer *layers;
} bough_model;

/* Keys and values: codes of `bits` (8 or 16) bits [num_layers][num_slots][num_kv_heads][head_dim] each, and what they are
 * to be multiplied with, [num_layers][num_slots][2][num_kv_heads]: the keys' scales and then the values'. */
typedef struct {
    uint8_t *keys, *values;
    float *scales;
    int64_t num_slots;
    int32_t page_size, bits;
} bough_cache;

typedef struct {
    int32_t num_tokens, num_sequences, num_logits, table_width;
    const int64_t *tokens, *positions, *write_slot; /* [num_tokens] */
    const int64_t *logit_rows;                      /* [num_logits] */
    const int32_t *query_start;                     /* [num_sequences + 1] */
    const int32_t *context_len;                     /* [num_sequences] */
    const int32_t *page_table;                      /* [num_sequences][table_width] */
    double *seconds; /* [BOUGH_STAGES] or NULL: where the time of the batch's stages is added */
    int32_t *faults; /* [num_tokens] or NULL, zeros: becomes 1 + the first layer in which a number was not finite, num_layers
                      * after the last one; logits of such a token, and of all that see its keys and values, are NaN */
} bough_batch;

enum {
    BOUGH_PLAN, BOUGH_NORM, BOUGH_QKV, BOUGH_STORE, BOUGH_ATTENTION, BOUGH_OUT, BOUGH_EXPAND, BOUGH_DOWN, BOUGH_HEAD,
    BOUGH_STAGES
};

/* What is asked of a row of logits, as a sum of these. */
enum {
    BOUGH_SCORE = 1, /* log-probabilities */
    BOUGH_TARGET = 2 /* nothing but what the model itself says */
};
#define BOUGH_LIKELIEST 20 /* tokens of which log-probabilities can be asked for */

/* How a row of logits is drawn from, and what is found; `token` is -1, and the rest undefined, where there is nothing finite. */
typedef struct {
    uint64_t seed;
    int64_t position;   /* of the token: its random number is that of (seed, position) */
    double temperature; /* 0: the likeliest token, not a draw */
    float top_p, min_p;
    int32_t top_k, asks, num_likeliest;
    int32_t mask;                                   /* row of the masks, or -1 */
    int32_t first_repeated, first_added, last_edit; /* of the edits: penalties of repetition, and what is added; half open */
    int32_t token;
    float raw, raw_top, final, final_top; /* the token's logit and the largest: the model's own, and when all is applied */
    double raw_sum, final_sum; /* of e^(x - top) */
} bough_draw;

/* A token whose logit changes; `change` is its old one afterwards. */
typedef struct {
    int32_t token;
    float change;
} bough_edit;

typedef struct {
    float *logits; /* [num_rows][vocab]; overwritten */
    bough_draw *rows;
    const uint32_t *masks; /* [][ceil(vocab / 32)]: bit i % 32 of word i / 32 is token i */
    bough_edit *edits;
    int32_t *likeliest;      /* [num_rows][BOUGH_LIKELIEST] */
    float *likeliest_logits; /* the same */
    uint8_t *workspace;      /* aligned to 64 bytes */
    int32_t num_rows, vocab;
} bough_sampling;

typedef struct bough_pool bough_pool;

/* Sizes of the structures above, of which a caller makes its own: weight, layer, model, cache, batch, draw, edit, sampling. */
void bough_sizes(int32_t sizes[8]);
int32_t bough_lanes(void); /* outputs of a tile: 16, 8, or 0 where this processor cannot run the library */
const char *bough_instructions(void); /* that it computes with, as "AVX2"; NULL in the same case */
bough_pool *bough_pool_create(int32_t num_threads);
void bough_pool_destroy(bough_pool *pool);
int64_t bough_workspace_bytes(const bough_model *model, int32_t num_threads, int32_t num_tokens, int32_t num_logits);
/* y[num_rows][weight->rows] = x[num_rows][weight->columns] W^T + b, with x rounded. */
void bough_multiply(bough_pool *pool, const bough_weight *weight, const float *x, int32_t num_rows, float *y);
/* y[num_rows][weight->columns]: rows of a weight as numbers. */
void bough_read_rows(const bough_weight *weight, const int64_t *rows, int32_t num_rows, float *y);
/* Packs a weight, or if there is none, numbers [rows][columns], as BOUGH_BITS8 | BOUGH_HADAMARD; columns % BOUGH_BLOCK == 0.
 * Returns 0 where memory is short, and -1 if some are not finite. */
int32_t bough_mix(bough_pool *pool, const bough_weight *from, const float *numbers, int32_t rows, int32_t columns, uint8_t *tiles);
/* Draws a token from each row of logits, on the threads of a pool if it is not NULL and there is enough to do. */
void bough_sample(bough_pool *pool, const bough_sampling *sampling);
int64_t bough_sampling_bytes(int32_t num_threads, int32_t vocab); /* of its workspace */
/* Writes the batch's keys and values, and logits float[num_logits][vocab]. `workspace` is aligned to 64 bytes. */
void bough_forward(bough_pool *pool, const bough_model *model, const bough_cache *cache, const bough_batch *batch,
                   uint8_t *workspace, float *logits);
