/* Which variant of the library this processor runs. */
#include "variant.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

static int has_avxvnni(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1;
}
#endif

static const bough_variant *find(void) {
    static const bough_variant *found;
    if (found) return found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const char *wanted = getenv("BOUGH_CPU");
    const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                       __builtin_cpu_supports("avx512vnni");
    const int avxvnni = avx2 && has_avxvnni();
    if (wanted && !strcmp(wanted, "avx2")) found = avx2 ? &bough_avx2 : 0;
    else if (wanted && !strcmp(wanted, "avxvnni")) found = avxvnni ? &bough_avxvnni : 0;
    else found = avx512 ? &bough_avx512 : avxvnni ? &bough_avxvnni : avx2 ? &bough_avx2 : 0;
#endif
    return found;
}

void bough_sizes(int32_t sizes[8]) {
    sizes[0] = sizeof(bough_weight), sizes[1] = sizeof(bough_layer), sizes[2] = sizeof(bough_model);
    sizes[3] = sizeof(bough_cache), sizes[4] = sizeof(bough_batch), sizes[5] = sizeof(bough_draw);
    sizes[6] = sizeof(bough_edit), sizes[7] = sizeof(bough_sampling);
}

int32_t bough_lanes(void) {
    const bough_variant *variant = find();
    return variant ? variant->lanes : 0;
}

int64_t bough_workspace_bytes(const bough_model *model, int32_t num_threads, int32_t num_tokens, int32_t num_logits) {
    return find()->workspace_bytes(model, num_threads, num_tokens, num_logits);
}

void bough_forward(bough_pool *pool, const bough_model *model, const bough_cache *cache, const bough_batch *batch,
                   uint8_t *workspace, float *logits) {
    find()->forward(pool, model, cache, batch, workspace, logits);
}

void bough_sample(bough_pool *pool, const bough_sampling *sampling) { find()->sample(pool, sampling); }

int64_t bough_sampling_bytes(int32_t num_threads, int32_t vocab) { return find()->sampling_bytes(num_threads, vocab); }

void bough_multiply(bough_pool *pool, const bough_weight *weight, const float *x, int32_t num_rows, float *y) {
    find()->multiply(pool, weight, x, num_rows, y);
}

int32_t bough_mix(bough_pool *pool, const bough_weight *from, const float *numbers, int32_t rows, int32_t columns, uint8_t *tiles) {
    return find()->mix(pool, from, numbers, rows, columns, tiles);
}

void bough_read_rows(const bough_weight *weight, const int64_t *rows, int32_t num_rows, float *y) {
    for (int32_t i = 0; i < num_rows; i++) find()->read_row(weight, rows[i], y + (int64_t)i * weight->columns);
}
