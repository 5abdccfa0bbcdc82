/* How weights lie in memory, and how a row of one is read.
 *
 * A weight lies in panels of LANES outputs, one after the other, and a panel in tiles of 32 inputs. A tile has
 *   codes      4 bits: vector i has inputs 4 i .. 4 i + 4 of each output in the low halves of the output's four bytes and
 *              inputs 16 + 4 i .. in the high ones, i < 4. 6 bits: the low four in the same way, and two more vectors, of
 *              which vector j has the upper two bits of inputs 16 j + 4 i .. in bits 2 i and 2 i + 1. 8 bits: vector i has
 *              inputs 4 i .. 4 i + 4, i < 8
 *   scales     [LANES] float16; float32 if WIDE; bytes if NESTED; twice, for 16 inputs each, if HALVES
 *   minimums   [LANES] in the same way, if MINIMUM
 * With NESTED, eight tiles come after a head of float16: [LANES] what their scales and, if MINIMUM, another [LANES] what
 * their minimums are to be multiplied with. A number is scale * code + minimum; what a code stands for without a minimum
 * is less by 8, 32 or 128. HADAMARD has no such tiles: see hadamard.h.
 *
 * While many rows are multiplied by a panel, it is UNPACKED: eight vectors of codes a tile, whatever their bits were, and
 * scales and minimums of float32 with their heads' factors. */
#pragma once

#include "../bough_cpu.h"
#include "../simd/simd.h"

#include <stdint.h>

enum { HEAD_TILES = 8 };

INLINE int code_bytes(const int format) {
    return LANES * (format & (BOUGH_BITS8 | BOUGH_UNPACKED) ? 32 : format & BOUGH_BITS6 ? 24 : 16);
}
INLINE int scale_bytes(const int format) {
    return LANES * (format & (BOUGH_WIDE | BOUGH_UNPACKED) ? 4 : format & BOUGH_NESTED ? 1 : 2);
}
INLINE int num_scales(const int format) { return format & BOUGH_HALVES ? 2 : 1; }
INLINE int tile_bytes(const int format) {
    return code_bytes(format) + scale_bytes(format) * (num_scales(format) + (format & BOUGH_MINIMUM ? 1 : 0));
}
INLINE int head_bytes(const int format) { return format & BOUGH_NESTED ? 2 * LANES * (format & BOUGH_MINIMUM ? 2 : 1) : 0; }
/* What a code without a minimum has too much. */
INLINE int code_offset(const int format) {
    return format & BOUGH_MINIMUM && !(format & BOUGH_BITS8) ? 0 : format & BOUGH_BITS8 ? 128 : format & BOUGH_BITS6 ? 32 : 8;
}
static int64_t panel_bytes(const int format, int32_t columns) {
    const int64_t tiles = columns / BOUGH_GROUP;
    if (format & BOUGH_HADAMARD) return LANES * (4 + (int64_t)columns);
    return tiles * tile_bytes(format) + tiles / HEAD_TILES * head_bytes(format);
}
INLINE const uint8_t *panel_at(const bough_weight *weight, int32_t panel) {
    return weight->tiles + panel * panel_bytes(weight->format, weight->columns);
}

/* Vector `i` of the eight that a tile's codes are: four bytes for each output. */
INLINE vi load_code(const int format, const uint8_t *tile, const int i) {
    if (format & (BOUGH_BITS8 | BOUGH_UNPACKED)) return vi_load(tile + i * LANES * 4);
    const vi both = vi_load(tile + i % 4 * LANES * 4), low = i < 4 ? vi_low_nibbles(both) : vi_high_nibbles(both);
    return format & BOUGH_BITS6 ? vi_add_upper(low, vi_load(tile + (16 + 4 * (i / 4)) * LANES), i % 4) : low;
}

/* Scale or minimum `index` of a tile, without its head's factor. */
INLINE vf load_scale(const int format, const uint8_t *tile, const int index) {
    const uint8_t *at = tile + code_bytes(format) + index * scale_bytes(format);
    if (format & (BOUGH_WIDE | BOUGH_UNPACKED)) return vf_load((const float *)at);
    if (!(format & BOUGH_NESTED)) return vf_half((const uint16_t *)at);
    return format & BOUGH_HALVES ? vf_signed_bytes(at) : vf_bytes(at);
}

/* Where the tile of group `group` is, after a head that it may have, whose factors are read. */
INLINE const uint8_t *read_head(const int format, const uint8_t *tile, int32_t group, vf *factor, vf *minimum_factor) {
    if (!(format & BOUGH_NESTED) || group % HEAD_TILES) return tile;
    *factor = vf_half((const uint16_t *)tile);
    if (format & BOUGH_MINIMUM) *minimum_factor = vf_half((const uint16_t *)tile + LANES);
    return tile + head_bytes(format);
}

/* The tile of any group of a panel, with its factors. */
INLINE const uint8_t *find_tile(const int format, const uint8_t *panel, int32_t group, vf *factor, vf *minimum_factor) {
    *factor = *minimum_factor = vf_set(1.0f);
    if (!(format & BOUGH_NESTED)) return panel + group * tile_bytes(format);
    const uint8_t *head = panel + group / HEAD_TILES * (head_bytes(format) + HEAD_TILES * tile_bytes(format));
    return read_head(format, head, 0, factor, minimum_factor) + group % HEAD_TILES * tile_bytes(format);
}

/* Unpacks a panel of `groups` tiles into `to`. */
INLINE void unpack(const int format, const uint8_t *tile, int32_t groups, uint8_t *to) {
    const int minimum = format & BOUGH_MINIMUM ? 1 : 0, numbers = num_scales(format) + minimum;
    vf factor = vf_set(1.0f), minimum_factor = factor;
    for (int32_t group = 0; group < groups; group++, tile += tile_bytes(format), to += LANES * (32 + 4 * numbers)) {
        tile = read_head(format, tile, group, &factor, &minimum_factor);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) vi_store(to + i * LANES * 4, load_code(format, tile, i));
#pragma GCC unroll 3
        for (int i = 0; i < numbers; i++) {
            const vf number = load_scale(format, tile, i), by = i < num_scales(format) ? factor : minimum_factor;
            vf_store((float *)(to + LANES * (32 + 4 * i)), format & BOUGH_NESTED ? vf_mul(number, by) : number);
        }
    }
}

/* A tile as numbers, [32][LANES]. */
INLINE void read_tile(const int format, const uint8_t *tile, vf factor, vf minimum_factor, float *y) {
    const vf offset = vf_set((float)code_offset(format));
    const vf least = format & BOUGH_MINIMUM ? vf_mul(load_scale(format, tile, num_scales(format)), minimum_factor) : vf_zero();
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const vi code = load_code(format, tile, i);
        const vf scale = vf_mul(load_scale(format, tile, num_scales(format) == 2 ? i / 4 : 0), factor);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++, y += LANES) vf_store(y, vf_add(vf_mul(scale, vf_sub(vf_byte(code, j), offset)), least));
    }
}

/* A panel as numbers, [columns][LANES]. */
static void read_panel(const bough_weight *weight, int32_t panel, float *y) {
    const uint8_t *tile = panel_at(weight, panel);
    vf factor = vf_set(1.0f), minimum_factor = factor;
    for (int32_t group = 0; group < weight->columns / BOUGH_GROUP; group++, tile += tile_bytes(weight->format)) {
        tile = read_head(weight->format, tile, group, &factor, &minimum_factor);
        read_tile(weight->format, tile, factor, minimum_factor, y + group * BOUGH_GROUP * LANES);
    }
}

/* Row `row` of a weight as numbers, as an embedding has it. */
static void read_row(const bough_weight *weight, int64_t row, float *y) {
    const uint8_t *tile = panel_at(weight, (int32_t)(row / LANES));
    float numbers[BOUGH_GROUP][LANES];
    vf factor = vf_set(1.0f), minimum_factor = factor;
    for (int32_t group = 0; group < weight->columns / BOUGH_GROUP; group++, tile += tile_bytes(weight->format)) {
        tile = read_head(weight->format, tile, group, &factor, &minimum_factor);
        read_tile(weight->format, tile, factor, minimum_factor, numbers[0]);
        for (int i = 0; i < BOUGH_GROUP; i++) y[group * BOUGH_GROUP + i] = numbers[i][row % LANES];
    }
}
