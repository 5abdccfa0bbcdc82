/* GGUF's blocks, and plain codes, put into tiles. */
#pragma once

#include "bough_cpu.h"

/* The format that holds a GGUF tensor type exactly; -1: none does. */
int32_t bough_format_of(int32_t type);
int64_t bough_weight_bytes(int32_t format, int32_t rows, int32_t columns);
/* Packs a tensor of `type`, [rows][columns], row order[i] of it as row i (order NULL: as they are). Rows that fill up the
 * last panel are zero. Returns 0 if a scale or a minimum is not finite, else 1. */
int32_t bough_pack_blocks(bough_pool *pool, int32_t type, const uint8_t *blocks, const int64_t *order, int32_t rows,
                          int32_t columns, uint8_t *tiles);
/* Packs codes [rows][columns], as tiles hold them, with float scales and minimums [rows][columns / 32] (or NULL), of a
 * format of BOUGH_WIDE or of float16. Returns 0 if one is not finite, else 1. */
int32_t bough_pack_codes(bough_pool *pool, int32_t format, const uint8_t *codes, const float *scales, const float *minimums,
                         int32_t rows, int32_t columns, uint8_t *tiles);
