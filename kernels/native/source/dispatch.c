/* Which variant of the library this processor runs. */
#include "variant.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

static const bough_variant *choose(const char *wanted) {
    unsigned a, b, c, d;
    __builtin_cpu_init();
    const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                       __builtin_cpu_supports("avx512vnni");
    const int avxvnni = avx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1;
    if (!strcmp(wanted, "avx2")) return avx2 ? &bough_avx2 : 0;
    if (!strcmp(wanted, "avxvnni")) return avxvnni ? &bough_avxvnni : 0;
    return avx512 ? &bough_avx512 : avxvnni ? &bough_avxvnni : avx2 ? &bough_avx2 : 0;
}
#elif defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>

static int has_dot(void) { return getauxval(AT_HWCAP) >> 20 & 1; }   /* HWCAP_ASIMDDP */
static int has_i8mm(void) { return getauxval(AT_HWCAP2) >> 13 & 1; } /* HWCAP2_I8MM */
#elif defined(__APPLE__)
#include <sys/sysctl.h>

static int is_set(const char *name) {
    int value = 0;
    size_t size = sizeof value;
    return !sysctlbyname(name, &value, &size, 0, 0) && value;
}
static int has_dot(void) { return is_set("hw.optional.arm.FEAT_DotProd"); }
static int has_i8mm(void) { return is_set("hw.optional.arm.FEAT_I8MM"); }
#else
static int has_dot(void) { return 0; }
static int has_i8mm(void) { return 0; }
#endif

static const bough_variant *choose(const char *wanted) {
    const int dot = has_dot(), i8mm = dot && has_i8mm();
    if (!strcmp(wanted, "neon")) return &bough_neon;
    if (!strcmp(wanted, "neon_dot")) return dot ? &bough_neon_dot : 0;
    return i8mm ? &bough_neon_i8mm : dot ? &bough_neon_dot : &bough_neon;
}
#else
static const bough_variant *choose(const char *wanted) { return (void)wanted, (const bough_variant *)0; }
#endif

static const bough_variant *find(void) {
    static const bough_variant *found;
    const char *wanted = found ? 0 : getenv("BOUGH_CPU");
    return found ? found : (found = choose(wanted ? wanted : ""));
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

const char *bough_instructions(void) {
    const bough_variant *variant = find();
    return variant ? variant->name : 0;
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
