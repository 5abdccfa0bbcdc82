/* Rows of a batch in which a number was found that is not finite. From there on all that is computed of a row, and its keys
 * and values, are NaN: scales are, whatever the codes. */
#pragma once

#include <stdint.h>

typedef struct {
    int32_t *found;      /* of each row of the batch: 0, or 1 + the layer; NULL: nobody asks */
    const int64_t *rows; /* of the batch, that are computed; NULL: all of them */
    int32_t layer;
} fault_log;

/* Marks the row that is computed as the `row`-th. Threads may find faults of the same row. */
static __attribute__((noinline, cold)) void mark_fault(const fault_log *log, int64_t row) {
    if (!log->found) return;
    int32_t none = 0;
    __atomic_compare_exchange_n(log->found + (log->rows ? log->rows[row] : row), &none, log->layer + 1, 0, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);
}
