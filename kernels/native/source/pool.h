/* Threads that run one function together, with a barrier between its phases. */
#pragma once

#include "bough_cpu.h"

#include <stdint.h>

typedef void (*bough_task)(void *context, int32_t thread);

/* Runs `task` on every thread of the pool, the caller's included, and returns when all are done. */
void bough_pool_run(bough_pool *pool, bough_task task, void *context);
int32_t bough_pool_size(const bough_pool *pool);
/* Within a task: waits until all threads are here. */
void bough_pool_wait(bough_pool *pool);
/* Within a task: the next of items 0 .. num_items that the threads share since the last wait, or num_items: at first every
 * size-th from its own number on, the same each time, and then what others have not begun. */
int32_t bough_pool_next(bough_pool *pool, int32_t thread, int32_t num_items);
