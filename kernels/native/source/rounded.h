/* Activations rounded to 8 bits in groups of 32, each by a scale of its own: a row's codes depend on that row alone. */

/* 32 numbers of each of four rows. */
typedef struct {
    int8_t codes[4][BOUGH_GROUP];
    float scales[4];
    float sums[4];        /* of the numbers */
    int32_t offsets[4];   /* -128 times the sum of the codes: takes back what a weight's codes have too much */
    int32_t halves[4][2]; /* the same, of the first and of the last 16 */
} rounded_group;

typedef struct {
    int32_t columns;
    rounded_group *groups; /* [ceil(rows / 4)][columns / 32] */
} rounded;

/* Where 32 numbers are, and the row and the group that they are rounded to. */
typedef struct {
    const float *numbers;
    int64_t row;
    int32_t group;
} to_round;

/* Rounds up to four times 32 numbers; together, since what is done across lanes is done once for all. */
INLINE void round_groups(const to_round *from, int num, const rounded *out) {
    enum { VECTORS = BOUGH_GROUP / LANES };
    vf largest[4];
    vi sums[2][4];
    float scales[LANES], inverses[LANES];
    int32_t counts[2][LANES];
    for (int i = 0; i < 4; i++) {
        const float *x = from[i < num ? i : 0].numbers;
        largest[i] = vf_zero();
        for (int v = 0; v < VECTORS; v++) largest[i] = vf_max(largest[i], vf_abs(vf_load(x + v * LANES)));
    }
    const vf scale = vf_div(vf_largest_of(largest), vf_set(127.0f));
    vf_store(scales, scale);
    vf_store(inverses, vf_div(vf_set(1.0f), scale));
    for (int i = 0; i < 4; i++) {
        const to_round *own = from + (i < num ? i : 0);
        rounded_group *to = out->groups + own->row / 4 * (out->columns / BOUGH_GROUP) + own->group;
        const vf inverse = vf_set(scales[i] > 1e-30f ? inverses[i] : 0.0f);
        sums[0][i] = sums[1][i] = vi_set(0);
        for (int v = 0; v < VECTORS; v++) {
            const vi code = vf_int(vf_mul(vf_load(own->numbers + v * LANES), inverse));
            vi_store_bytes(to->codes[own->row % 4] + v * LANES, code);
            sums[2 * v / VECTORS][i] = vi_add(sums[2 * v / VECTORS][i], code);
        }
    }
    vi_store(counts[0], vi_sum_of(sums[0]));
    vi_store(counts[1], vi_sum_of(sums[1]));
    for (int i = 0; i < num; i++) {
        rounded_group *to = out->groups + from[i].row / 4 * (out->columns / BOUGH_GROUP) + from[i].group;
        const int at = (int)(from[i].row % 4), count = counts[0][i] + counts[1][i];
        to->scales[at] = scales[i];
        to->sums[at] = scales[i] * (float)count;
        to->offsets[at] = -128 * count;
        to->halves[at][0] = -128 * counts[0][i];
        to->halves[at][1] = -128 * counts[1][i];
    }
}

/* Rounds a row of numbers, from group `group` on. */
INLINE void round_row(const float *x, int32_t num_groups, const rounded *out, int64_t row, int32_t group) {
    for (int32_t i = 0; i < num_groups; i += 4) {
        to_round from[4];
        for (int32_t k = 0; k < 4; k++) from[k] = (to_round){x + (i + k) * BOUGH_GROUP, row, group + i + k};
        round_groups(from, num_groups - i < 4 ? num_groups - i : 4, out);
    }
}
