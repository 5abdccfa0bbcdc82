/* GGUF's blocks, and plain codes, put into tiles. */
#include "pack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pool.h"

enum { Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14 };
enum { HEAD_TILES = 8 };

typedef struct {
    int lanes, code_bytes, scale_bytes, tile_bytes, head_bytes;
} layout;

static layout layout_of(int32_t format) {
    const int lanes = bough_lanes(), scales = format & BOUGH_HALVES ? 2 : 1, minimum = format & BOUGH_MINIMUM ? 1 : 0;
    layout at = {.lanes = lanes};
    at.code_bytes = lanes * (format & BOUGH_BITS8 ? 32 : format & BOUGH_BITS6 ? 24 : 16);
    at.scale_bytes = lanes * (format & BOUGH_NESTED ? 1 : format & BOUGH_WIDE ? 4 : 2);
    at.tile_bytes = at.code_bytes + at.scale_bytes * (scales + minimum);
    at.head_bytes = format & BOUGH_NESTED ? 2 * lanes * (1 + minimum) : 0;
    return at;
}

static int64_t panel_bytes(const layout *at, int32_t columns) {
    const int64_t tiles = columns / BOUGH_GROUP;
    return tiles * at->tile_bytes + tiles / HEAD_TILES * at->head_bytes;
}

int64_t bough_weight_bytes(int32_t format, int32_t rows, int32_t columns) {
    const layout at = layout_of(format);
    const int64_t panel = format & BOUGH_HADAMARD ? at.lanes * (4 + (int64_t)columns) : panel_bytes(&at, columns);
    return (rows + at.lanes - 1) / at.lanes * panel;
}

int32_t bough_format_of(int32_t type) {
    switch (type) {
        case Q4_0: return BOUGH_BITS4;
        case Q4_1: return BOUGH_BITS4 | BOUGH_MINIMUM;
        case Q5_0: case Q8_0: return BOUGH_BITS8;
        case Q5_1: return BOUGH_BITS8 | BOUGH_MINIMUM;
        case Q4_K: return BOUGH_BITS4 | BOUGH_NESTED | BOUGH_MINIMUM;
        case Q5_K: return BOUGH_BITS8 | BOUGH_NESTED | BOUGH_MINIMUM;
        case Q6_K: return BOUGH_BITS6 | BOUGH_NESTED | BOUGH_HALVES;
        default: return -1;
    }
}

/* Writes 32 codes of the output `lane`. */
static void put_codes(int32_t format, const layout *at, uint8_t *tile, int lane, const uint8_t *codes) {
    for (int i = 0; i < BOUGH_GROUP; i++) {
        const int vector = i / 4, byte = lane * 4 + i % 4;
        if (format & BOUGH_BITS8) {
            tile[vector * at->lanes * 4 + byte] = codes[i];
            continue;
        }
        uint8_t *low = tile + vector % 4 * at->lanes * 4 + byte;
        *low = (uint8_t)(vector < 4 ? codes[i] & 15 : *low | (codes[i] & 15) << 4);
        if (format & BOUGH_BITS6) {
            uint8_t *upper = tile + (4 + vector / 4) * at->lanes * 4 + byte;
            *upper = (uint8_t)((vector % 4 ? *upper : 0) | codes[i] >> 4 << 2 * (vector % 4));
        }
    }
}

static void put_scale(const layout *at, uint8_t *tile, int lane, int index, const void *scale) {
    const int size = at->scale_bytes / at->lanes;
    memcpy(tile + at->code_bytes + index * at->scale_bytes + lane * size, scale, (size_t)size);
}

static void nibbles(const uint8_t *bytes, int num, uint8_t *codes) {
    for (int i = 0; i < num; i++) codes[i] = bytes[i] & 15, codes[num + i] = bytes[i] >> 4;
}

static int is_finite_half(const uint8_t *half) { return (half[1] & 0x7c) != 0x7c; }

/* One block of 32 numbers -> one tile's part. Returns whether its numbers are finite. */
static int pack_small(int32_t type, const layout *at, const uint8_t *block, uint8_t *tile, int lane) {
    const int minimum = type == Q4_1 || type == Q5_1;
    const uint8_t *rest = block + (minimum ? 4 : 2);
    uint8_t codes[BOUGH_GROUP];
    if (type == Q8_0) {
        for (int i = 0; i < BOUGH_GROUP; i++) codes[i] = rest[i] ^ 0x80;
    } else if (type == Q4_0 || type == Q4_1) {
        nibbles(rest, 16, codes);
    } else {
        uint32_t fifth;
        memcpy(&fifth, rest, 4);
        nibbles(rest + 4, 16, codes);
        for (int i = 0; i < BOUGH_GROUP; i++) codes[i] = (uint8_t)((codes[i] | (fifth >> i & 1) << 4) + (minimum ? 128 : 112));
    }
    put_codes(bough_format_of(type), at, tile, lane, codes);
    put_scale(at, tile, lane, 0, block);
    if (minimum) put_scale(at, tile, lane, 1, block + 2);
    return is_finite_half(block) && (!minimum || is_finite_half(block + 2));
}

/* One block of 256 numbers -> a head's and eight tiles' parts. Returns whether its numbers are finite. */
static int pack_large(int32_t type, const layout *at, const uint8_t *block, uint8_t *tiles, int lane) {
    const int32_t format = bough_format_of(type);
    uint8_t codes[256];
    if (type == Q6_K) {
        for (int half = 0; half < 2; half++)
            for (int i = 0; i < 128; i++) {
                const uint8_t low = block[half * 64 + i % 64], high = block[128 + half * 32 + i % 32];
                codes[half * 128 + i] = (uint8_t)((i < 64 ? low & 15 : low >> 4) | (high >> (i / 32 * 2) & 3) << 4);
            }
    } else {
        for (int i = 0; i < 4; i++) nibbles(block + (type == Q4_K ? 16 : 48) + 32 * i, 32, codes + 64 * i);
        for (int i = 0; type == Q5_K && i < 256; i++)
            codes[i] = (uint8_t)((codes[i] | (block[16 + i % 32] >> (i / 32) & 1) << 4) + 128);
    }
    memcpy(tiles + 2 * lane, block + (type == Q6_K ? 208 : 0), 2);
    if (type != Q6_K) {
        /* The minimums are taken away: their factor has its sign turned. */
        const uint8_t turned[2] = {block[2], block[3] ^ 0x80};
        memcpy(tiles + 2 * (at->lanes + lane), turned, 2);
    }
    for (int i = 0; i < HEAD_TILES; i++) {
        uint8_t *tile = tiles + at->head_bytes + i * at->tile_bytes;
        const uint8_t *packed = block + 4;
        put_codes(format, at, tile, lane, codes + 32 * i);
        if (type == Q6_K) {
            put_scale(at, tile, lane, 0, block + 192 + 2 * i);
            put_scale(at, tile, lane, 1, block + 193 + 2 * i);
            continue;
        }
        const uint8_t scale = i < 4 ? packed[i] & 63 : (packed[i + 4] & 15) | packed[i - 4] >> 6 << 4;
        const uint8_t minimum = i < 4 ? packed[i + 4] & 63 : packed[i + 4] >> 4 | packed[i] >> 6 << 4;
        put_scale(at, tile, lane, 0, &scale);
        put_scale(at, tile, lane, 1, &minimum);
    }
    return type == Q6_K ? is_finite_half(block + 208) : is_finite_half(block) && is_finite_half(block + 2);
}

typedef struct {
    bough_pool *pool;
    int32_t type, format, rows, columns;
    const uint8_t *source;
    const int64_t *order;
    const float *scales, *minimums;
    uint8_t *tiles;
    int32_t num_faults; /* panels with numbers that are not finite */
} packing;

static int block_bytes(int32_t type) {
    switch (type) {
        case Q4_0: return 18;
        case Q4_1: return 20;
        case Q5_0: return 22;
        case Q5_1: return 24;
        case Q8_0: return 34;
        case Q4_K: return 144;
        case Q5_K: return 176;
        case Q6_K: return 210;
        default: abort(); /* bough_format_of knows a type that this does not */
    }
}

static int pack_row_of_blocks(const packing *p, const layout *at, int64_t row, uint8_t *panel, int lane) {
    const int large = bough_format_of(p->type) & BOUGH_NESTED, size = block_bytes(p->type);
    const int32_t num = p->columns / (large ? 256 : BOUGH_GROUP);
    const uint8_t *blocks = p->source + (p->order ? p->order[row] : row) * num * size;
    int finite = 1;
    for (int32_t i = 0; i < num; i++) {
        if (large) finite &= pack_large(p->type, at, blocks + i * size, panel + i * (at->head_bytes + HEAD_TILES * at->tile_bytes), lane);
        else finite &= pack_small(p->type, at, blocks + i * size, panel + i * at->tile_bytes, lane);
    }
    return finite;
}

static int pack_row_of_codes(const packing *p, const layout *at, int64_t row, uint8_t *panel, int lane) {
    const int32_t num = p->columns / BOUGH_GROUP;
    int finite = 1;
    for (int32_t i = 0; i < num; i++, panel += at->tile_bytes) {
        put_codes(p->format, at, panel, lane, p->source + row * p->columns + i * BOUGH_GROUP);
        const float *numbers[2] = {p->scales, p->minimums};
        for (int index = 0; index < 2 && numbers[index]; index++) {
            const float wide = numbers[index][row * num + i];
            const _Float16 half = (_Float16)wide;
            put_scale(at, panel, lane, index, p->format & BOUGH_WIDE ? (const void *)&wide : (const void *)&half);
            finite &= isfinite(wide) != 0;
        }
    }
    return finite;
}

static void pack_panels(void *context, int32_t thread) {
    packing *p = context;
    const layout at = layout_of(p->format);
    const int64_t size = panel_bytes(&at, p->columns);
    const int32_t num_panels = (p->rows + at.lanes - 1) / at.lanes;
    for (int32_t panel; (panel = bough_pool_next(p->pool, thread, num_panels)) < num_panels;) {
        uint8_t *to = p->tiles + panel * size;
        const int32_t left = p->rows - panel * at.lanes;
        int finite = 1;
        if (left < at.lanes) memset(to, 0, (size_t)size);
        for (int lane = 0; lane < at.lanes && lane < left; lane++) {
            const int64_t row = (int64_t)panel * at.lanes + lane;
            finite &= p->type >= 0 ? pack_row_of_blocks(p, &at, row, to, lane) : pack_row_of_codes(p, &at, row, to, lane);
        }
        if (!finite) __atomic_fetch_add(&p->num_faults, 1, __ATOMIC_RELAXED);
    }
}

int32_t bough_pack_blocks(bough_pool *pool, int32_t type, const uint8_t *blocks, const int64_t *order, int32_t rows,
                          int32_t columns, uint8_t *tiles) {
    packing p = {.pool = pool, .type = type, .format = bough_format_of(type), .rows = rows, .columns = columns,
                 .source = blocks, .order = order, .tiles = tiles};
    bough_pool_run(pool, pack_panels, &p);
    return !p.num_faults;
}

int32_t bough_pack_codes(bough_pool *pool, int32_t format, const uint8_t *codes, const float *scales, const float *minimums,
                         int32_t rows, int32_t columns, uint8_t *tiles) {
    packing p = {.pool = pool, .type = -1, .format = format, .rows = rows, .columns = columns, .source = codes,
                 .scales = scales, .minimums = minimums, .tiles = tiles};
    bough_pool_run(pool, pack_panels, &p);
    return !p.num_faults;
}
