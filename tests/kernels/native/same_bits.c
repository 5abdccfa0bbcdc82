/* Prints a hash of what the CPU library computes of numbers that are the same on all processors, case by case, and on
 * stderr the instructions that it computes with. */
#include "bough_cpu.h"
#include "pack.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUM(ARRAY) ((int32_t)(sizeof(ARRAY) / sizeof *(ARRAY)))

static bough_pool *pool;
static uint64_t state, hash;
static int64_t num_nans; /* of what was hashed */

static uint64_t next(void) { /* splitmix64 */
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}
static int32_t below(int32_t bound) { return (int32_t)(next() % (uint64_t)bound); }
static float uniform(float size) { return ((float)below(1 << 24) * 0x1p-23f - 1.0f) * size; } /* -size .. size */

static void *memory(int64_t num_bytes) {
    void *start = aligned_alloc(64, (size_t)(num_bytes + 63) / 64 * 64);
    if (!start) exit(1);
    return memset(start, 0, (size_t)num_bytes);
}
static float *numbers(int64_t num, float size) {
    float *x = memory(num * 4);
    for (int64_t i = 0; i < num; i++) x[i] = uniform(size);
    return x;
}

static void see(const void *bytes, int64_t num) { /* FNV-1a */
    for (int64_t i = 0; i < num; i++) hash = (hash ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3;
}
static void see_floats(const float *x, int64_t num) {
    for (int64_t i = 0; i < num; i++) see(isnan(x[i]) ? "NaN." : (const void *)(x + i), 4); /* processors have NaNs of their own */
    for (int64_t i = 0; i < num; i++) num_nans += isnan(x[i]) != 0;
}
static void say(const char *what, int32_t a, int32_t b) {
    printf("%s %d %d: %016llx, %lld NaN\n", what, (int)a, (int)b, (unsigned long long)hash, (long long)num_nans);
    hash = 0xcbf29ce484222325, num_nans = 0;
}

/* -- weights ---------------------------------------------------------------------------------------------------------- */

static bough_weight weight_of(int32_t format, int32_t rows, int32_t columns) {
    return (bough_weight){.format = format, .rows = rows, .columns = columns, .tiles = memory(bough_weight_bytes(format, rows, columns))};
}

static bough_weight random_codes(int32_t format, int32_t rows, int32_t columns) {
    bough_weight weight = weight_of(format, rows, columns);
    uint8_t *codes = memory((int64_t)rows * columns);
    for (int32_t i = 0; i < rows * columns; i++) codes[i] = (uint8_t)(format & BOUGH_BITS8 ? below(256) : below(16));
    const float size = format & BOUGH_BITS8 ? 0.002f : 0.03f;
    float *scales = numbers(rows * columns / BOUGH_GROUP, size), *minimums = numbers(rows * columns / BOUGH_GROUP, size);
    bough_pack_codes(pool, format, codes, scales, format & BOUGH_MINIMUM ? minimums : 0, rows, columns, (uint8_t *)weight.tiles);
    free(codes), free(scales), free(minimums);
    return weight;
}

static bough_weight random_mixed(int32_t rows, int32_t columns) {
    bough_weight weight = weight_of(BOUGH_BITS8 | BOUGH_HADAMARD, rows, columns);
    float *x = numbers((int64_t)rows * columns, 0.1f);
    bough_mix(pool, 0, x, rows, columns, (uint8_t *)weight.tiles);
    free(x);
    return weight;
}

/* Blocks of a GGUF type; float16 numbers in them, at `halves`, are finite. */
static bough_weight random_blocks(int32_t type, int32_t size, const int32_t halves[2], int32_t rows, int32_t columns) {
    bough_weight weight = weight_of(bough_format_of(type), rows, columns);
    const int32_t num = rows * (columns / (size > 34 ? 256 : BOUGH_GROUP));
    uint8_t *blocks = memory(num * size);
    int64_t *order = memory(rows * 8);
    for (int32_t i = 0; i < num * size; i++) blocks[i] = (uint8_t)next();
    for (int32_t i = 0; i < num; i++)
        for (int32_t k = 0; k < 2; k++) blocks[i * size + halves[k] + 1] = (uint8_t)(next() & 0x83 ? 0x18 + below(12) : below(4)); /* some denormal */
    for (int32_t i = 0; i < rows; i++) order[i] = (i * 7 + 3) % rows;
    bough_pack_blocks(pool, type, blocks, order, rows, columns, (uint8_t *)weight.tiles);
    free(blocks), free(order);
    return weight;
}

static void check_products(const char *what, bough_weight weight, int32_t name) {
    static const int32_t counts[] = {1, 2, 3, 4, 7, 12, 20, 50};
    float *y = memory(50LL * weight.rows * 4), *x = numbers(50LL * weight.columns, 3.0f), *bias = numbers(weight.rows, 1.0f);
    weight.bias = bias;
    for (int32_t i = 0; i < NUM(counts); i++) {
        bough_multiply(pool, &weight, x, counts[i], y);
        see_floats(y, (int64_t)counts[i] * weight.rows);
    }
    x[5] = INFINITY, x[weight.columns + 7] = NAN, x[3 * weight.columns] = 1e-38f;
    memset(x + 2 * weight.columns, 0, (size_t)weight.columns * 4);
    bough_multiply(pool, &weight, x, 5, y);
    see_floats(y, 5LL * weight.rows);
    say(what, name, weight.format);
    free(x), free(y), free(bias);
}

static void check_weight(const char *what, bough_weight weight, int32_t name) {
    float *y = memory((int64_t)weight.rows * weight.columns * 4);
    int64_t *rows = memory(weight.rows * 8);
    for (int32_t i = 0; i < weight.rows; i++) rows[i] = i;
    bough_read_rows(&weight, rows, weight.rows, y);
    see_floats(y, (int64_t)weight.rows * weight.columns);
    free(y), free(rows);
    check_products(what, weight, name);
    bough_weight mixed = weight_of(BOUGH_BITS8 | BOUGH_HADAMARD, weight.rows, weight.columns);
    bough_mix(pool, &weight, 0, weight.rows, weight.columns, (uint8_t *)mixed.tiles);
    check_products("mixed", mixed, name);
    free((void *)mixed.tiles), free((void *)weight.tiles);
}

static void check_weights(void) {
    static const struct { int32_t type, size, halves[2]; } types[] = {
        {2, 18, {0, 0}}, {3, 20, {0, 2}}, {6, 22, {0, 0}}, {7, 24, {0, 2}}, {8, 34, {0, 0}}, {12, 144, {0, 2}}, {13, 176, {0, 2}}, {14, 210, {208, 208}}};
    static const int32_t formats[] = {BOUGH_BITS4, BOUGH_BITS8, BOUGH_BITS4 | BOUGH_MINIMUM, BOUGH_BITS8 | BOUGH_MINIMUM};
    for (int32_t i = 0; i < NUM(types); i++) check_weight("blocks", random_blocks(types[i].type, types[i].size, types[i].halves, 21, 512), types[i].type);
    for (int32_t wide = 0; wide <= BOUGH_WIDE; wide += BOUGH_WIDE)
        for (int32_t i = 0; i < NUM(formats); i++) check_weight("codes", random_codes(formats[i] | wide, 37, 192), i);
}

/* -- whole passes ----------------------------------------------------------------------------------------------------- */

enum { LAYERS = 2, HIDDEN = 128, INTERMEDIATE = 192, VOCAB = 203, POSITIONS = 1200, SLOTS = 1800, WIDTH = 1200, PAGE = 4 };

typedef struct {
    int32_t format, heads, kv_heads, dim, bits, window, has_norms, has_rests;
    int32_t lengths[4]; /* of prompts; the last is computed later and begins as the first one does */
} setting;

static bough_weight random_weight(const setting *of, int32_t rows, int32_t columns) {
    return of->format & BOUGH_HADAMARD ? random_mixed(rows, columns) : random_codes(of->format, rows, columns);
}

static bough_model random_model(const setting *of, bough_layer *layers) {
    const int32_t dim = of->dim, half = dim / 2, width = of->heads * dim, kv_width = of->kv_heads * dim;
    float *cos = numbers((int64_t)POSITIONS * half, 1.0f), *sin = memory((int64_t)POSITIONS * half * 4);
    for (int32_t i = 0; i < POSITIONS * half; i++) sin[i] = sqrtf(1.0f - cos[i] * cos[i]);
    for (int32_t i = 0; i < LAYERS; i++) {
        layers[i] = (bough_layer){
            .input_norm = numbers(HIDDEN, 2.0f), .post_norm = numbers(HIDDEN, 2.0f), .rotates = i == 0, .window = i ? of->window : 0,
            .query_norm = of->has_norms ? numbers(dim, 2.0f) : 0, .key_norm = of->has_norms ? numbers(dim, 2.0f) : 0,
            .query = random_weight(of, width, HIDDEN), .key = random_weight(of, kv_width, HIDDEN),
            .value = random_weight(of, kv_width, HIDDEN), .out = random_weight(of, HIDDEN, width),
            .gate = random_weight(of, INTERMEDIATE, HIDDEN), .up = random_weight(of, INTERMEDIATE, HIDDEN),
            .down = random_weight(of, HIDDEN, INTERMEDIATE)};
        layers[i].query.bias = numbers(width, 0.5f);
    }
    return (bough_model){
        .num_layers = LAYERS, .has_rests = of->has_rests, .num_heads = of->heads, .num_kv_heads = of->kv_heads, .head_dim = dim, .hidden = HIDDEN,
        .intermediate = INTERMEDIATE, .vocab = VOCAB, .num_positions = POSITIONS, .norm_eps = 1e-5f, .scale = 0.5f, .cos = cos,
        .sin = sin, .norm = numbers(HIDDEN, 1.0f), .embedding = random_codes(BOUGH_BITS8, VOCAB, HIDDEN),
        .head = random_weight(of, VOCAB, HIDDEN), .layers = layers};
}

/* Computes tokens from[i] .. to[i] of sequences, of which all logits are asked for, or the last ones. */
static void pass(const bough_model *model, const bough_cache *cache, const int32_t *tables, int32_t num, const int32_t *from,
                 const int32_t *to, int all) {
    int32_t num_tokens = 0, num_logits = 0, query_start[5] = {0}, context_len[4];
    static int64_t tokens[4 * POSITIONS], positions[4 * POSITIONS], slots[4 * POSITIONS], rows[4 * POSITIONS];
    static int32_t faults[4 * POSITIONS];
    memset(faults, 0, sizeof faults);
    for (int32_t i = 0; i < num; i++) {
        for (int32_t at = from[i]; at < to[i]; at++, num_tokens++) {
            if (all || at == to[i] - 1) rows[num_logits++] = num_tokens;
            tokens[num_tokens] = (at * 31 + (at >= 80 ? i : 0) * 7) % VOCAB; /* prompts begin alike */
            positions[num_tokens] = at;
            slots[num_tokens] = tables[i * WIDTH + at / PAGE] * PAGE + at % PAGE;
        }
        query_start[i + 1] = num_tokens, context_len[i] = to[i];
    }
    const bough_batch batch = {.num_tokens = num_tokens, .num_sequences = num, .num_logits = num_logits, .table_width = WIDTH,
                               .tokens = tokens, .positions = positions, .write_slot = slots, .logit_rows = rows, .faults = faults,
                               .query_start = query_start, .context_len = context_len, .page_table = tables};
    uint8_t *workspace = memory(bough_workspace_bytes(model, 2, num_tokens, num_logits));
    float *logits = memory((int64_t)num_logits * VOCAB * 4);
    bough_forward(pool, model, cache, &batch, workspace, logits);
    see_floats(logits, (int64_t)num_logits * VOCAB);
    see(faults, sizeof faults);
    free(workspace), free(logits);
}

static void check_passes(const setting *of, int32_t name) {
    static int32_t tables[4 * WIDTH];
    bough_layer layers[LAYERS];
    const bough_model model = random_model(of, layers);
    const int64_t num = (int64_t)LAYERS * SLOTS * of->kv_heads;
    const bough_cache cache = {.keys = memory(num * of->dim * of->bits / 8), .values = memory(num * of->dim * of->bits / 8),
                               .scales = memory(num * 8), .num_slots = SLOTS, .page_size = PAGE, .bits = of->bits};
    for (int32_t i = 0, page = 0; i < 4; i++)
        for (int32_t k = 0; k <= of->lengths[i] / PAGE + 1; k++) /* the second and the last share pages of the first */
            tables[i * WIDTH + k] = (i == 1 || i == 3) && k < 80 / PAGE ? tables[k] : page++ * 7 % (SLOTS / PAGE);
    int32_t from[4] = {0, 80, 0, 80}, to[4];
    for (int32_t i = 0; i < 4; i++) to[i] = of->lengths[i];
    pass(&model, &cache, tables, 1, from, to, 1);
    pass(&model, &cache, tables + WIDTH, 2, from + 1, to + 1, 0);
    say("prompts", name, of->bits);
    for (int32_t i = 0; i < 3; i++) from[i] = to[i], to[i]++;
    pass(&model, &cache, tables, 4, from, to, 0);
    for (int32_t i = 0; i < 4; i++) from[i] = to[i], to[i]++;
    pass(&model, &cache, tables, 4, from, to, 1);
    say("steps", name, of->bits);
    see_floats(cache.scales, num * 2);
    see(cache.keys, num * of->dim * of->bits / 8), see(cache.values, num * of->dim * of->bits / 8);
    say("cache", name, of->bits);
    for (int32_t i = 0; i < 4; i++) from[i] = to[i], to[i]++;
    ((float *)layers[0].input_norm)[3] = 3e38f; /* a fault of some tokens; the first sequence has one that only it sees, too */
    cache.scales[(int64_t)(tables[82 / PAGE] * PAGE + 82 % PAGE) * 2 * of->kv_heads] = NAN;
    pass(&model, &cache, tables, 4, from, to, 0);
    say("faults", name, of->bits);
}

/* -- sampling --------------------------------------------------------------------------------------------------------- */

static void check_sampling(int32_t vocab, float size) {
    static const bough_draw kinds[] = {
        {.mask = -1}, {.asks = BOUGH_SCORE, .num_likeliest = 20, .mask = 0},
        {.temperature = 1.0f, .top_p = 1.0f, .mask = -1}, {.temperature = 0.7f, .top_p = 0.9f, .mask = -1, .asks = BOUGH_SCORE},
        {.temperature = 1.3f, .top_p = 0.95f, .mask = 0}, {.temperature = 0.9f, .top_p = 1.0f, .top_k = 40, .mask = -1},
        {.temperature = 1.1f, .top_p = 0.8f, .top_k = 17, .mask = -1}, {.temperature = 1.0f, .top_p = 1.0f, .min_p = 0.05f, .mask = -1},
        {.temperature = 1e-3f, .top_p = 0.5f, .min_p = 0.1f, .mask = 1}, {.temperature = 2.0f, .top_p = 0.99f, .mask = 1, .asks = BOUGH_SCORE},
        {.asks = BOUGH_SCORE | BOUGH_TARGET, .num_likeliest = 5, .mask = -1}};
    enum { ROWS = 8 * NUM(kinds), EDITS = 6 };
    const int32_t words = (vocab + 31) / 32;
    bough_sampling all = {.logits = numbers((int64_t)ROWS * vocab, size), .rows = memory(ROWS * sizeof(bough_draw)), .vocab = vocab,
                          .edits = memory(ROWS * EDITS * sizeof(bough_edit)), .likeliest = memory(ROWS * BOUGH_LIKELIEST * 4),
                          .likeliest_logits = memory(ROWS * BOUGH_LIKELIEST * 4), .num_rows = ROWS,
                          .workspace = memory(bough_sampling_bytes(2, vocab))};
    uint32_t *masks = memory(2LL * words * 4);
    for (int32_t i = 0; i < words; i++) masks[i] = (uint32_t)next(), masks[words + i] = i % 7 ? 0 : 1u << below(20);
    all.masks = masks;
    for (int32_t i = 0; i < ROWS; i++) {
        all.rows[i] = kinds[i % NUM(kinds)];
        all.rows[i].seed = next(), all.rows[i].position = i;
        all.rows[i].first_repeated = i * EDITS, all.rows[i].first_added = i * EDITS + 3, all.rows[i].last_edit = (i + i % 2) * EDITS;
        if (i % 2 == 0) all.rows[i].first_added = i * EDITS;
        for (int32_t k = 0; k < EDITS; k++) all.edits[i * EDITS + k] = (bough_edit){(k * 31 + i) % vocab, k < 3 ? 1.3f : uniform(2.0f)};
        if (i % 5 == 1) all.logits[i * vocab + below(vocab)] = -INFINITY;
    }
    all.logits[3 * vocab + 9] = NAN, all.logits[4 * vocab + vocab - 1] = INFINITY;
    bough_sample(pool, &all);
    for (int32_t i = 0; i < ROWS; i++) {
        const bough_draw *row = all.rows + i;
        see(&row->token, 4);
        if (row->token < 0 || !(row->asks & BOUGH_SCORE)) continue;
        see_floats(&row->raw_top, 1), see(&row->raw_sum, 8);
        if (!(row->asks & BOUGH_TARGET)) see_floats(&row->raw, 1), see_floats(&row->final, 2), see(&row->final_sum, 8);
        see(all.likeliest + i * BOUGH_LIKELIEST, row->num_likeliest * 4);
        see_floats(all.likeliest_logits + i * BOUGH_LIKELIEST, row->num_likeliest);
    }
    say("sampling", vocab, (int32_t)size);
}

int main(void) {
    static const setting settings[] = {
        {BOUGH_BITS8 | BOUGH_WIDE, 4, 2, 64, 16, 0, 0, 1, {150, 130, 20, 85}},
        {BOUGH_BITS8 | BOUGH_HADAMARD, 4, 1, 64, 8, 70, 1, 0, {140, 100, 70, 85}},
        {BOUGH_BITS4, 2, 2, 96, 8, 0, 0, 1, {90, 82, 1, 81}},
        {BOUGH_BITS8 | BOUGH_HADAMARD, 2, 1, 128, 8, 0, 0, 0, {90, 85, 70, 140}},
        {BOUGH_BITS4 | BOUGH_MINIMUM, 2, 1, 32, 16, 0, 1, 1, {120, 85, 5, 90}},
        {BOUGH_BITS8 | BOUGH_WIDE, 1, 1, 64, 8, 0, 0, 0, {1090, 85, 5, 90}}}; /* sums of parts are merged */
    hash = 0xcbf29ce484222325;
    fprintf(stderr, "%s\n", bough_lanes() ? bough_instructions() : "none");
    pool = bough_pool_create(2);
    check_weights();
    check_sampling(1003, 4.0f), check_sampling(7000, 9.0f), check_sampling(50, 1.0f);
    for (int32_t i = 0; i < NUM(settings); i++) check_passes(settings + i, i);
    bough_pool_destroy(pool);
    return 0;
}
