/* The same library for several processors. */
#pragma once

#include "bough_cpu.h"

typedef struct {
    const char *name; /* of its instructions */
    int32_t lanes;
    void (*forward)(bough_pool *, const bough_model *, const bough_cache *, const bough_batch *, uint8_t *, float *);
    void (*multiply)(bough_pool *, const bough_weight *, const float *, int32_t, float *);
    int32_t (*mix)(bough_pool *, const bough_weight *, const float *, int32_t, int32_t, uint8_t *);
    void (*read_row)(const bough_weight *, int64_t, float *);
    void (*sample)(bough_pool *, const bough_sampling *);
    int64_t (*sampling_bytes)(int32_t, int32_t);
    int64_t (*workspace_bytes)(const bough_model *, int32_t, int32_t, int32_t);
} bough_variant;

extern const bough_variant bough_avx512, bough_avxvnni, bough_avx2, bough_neon, bough_neon_dot, bough_neon_i8mm;
