/* Threads that run one function together, with a barrier between its phases.
 *
 * A thread that waits spins for some microseconds and then sleeps, so that a machine that is busy with other work loses
 * no time slices to waiting. */
#include "pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define RELAX() _mm_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("isb") /* some tens of cycles; `yield` is none on most cores */
#else
#define RELAX() ((void)0)
#endif

#define SPINS 400

/* How many of a thread's items have been taken. */
typedef struct {
    _Alignas(64) atomic_int taken;
} share;

struct bough_pool {
    int32_t size;
    pthread_t *threads;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    _Alignas(64) atomic_uint tasks;    /* begun so far */
    _Alignas(64) atomic_uint barriers; /* passed so far */
    _Alignas(64) atomic_int arrived;   /* threads that wait at the barrier */
    share *shares;                     /* [size] */
    _Alignas(64) atomic_int sleepers;
    bough_task task;
    void *context;
    atomic_int stopping;
};

typedef struct {
    bough_pool *pool;
    int32_t thread;
} thread_start;

static void await(bough_pool *pool, atomic_uint *count, unsigned old) {
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(count, memory_order_acquire) != old) return;
        RELAX();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(count) == old) pthread_cond_wait(&pool->changed, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void advance(bough_pool *pool, atomic_uint *count) {
    atomic_fetch_add(count, 1);
    if (atomic_load(&pool->sleepers)) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->changed);
        pthread_mutex_unlock(&pool->lock);
    }
}

static void reset_shares(bough_pool *pool) {
    for (int32_t i = 0; i < pool->size; i++) atomic_store_explicit(&pool->shares[i].taken, 0, memory_order_release);
}

void bough_pool_wait(bough_pool *pool) {
    const unsigned old = atomic_load(&pool->barriers);
    if (atomic_fetch_add(&pool->arrived, 1) + 1 < pool->size) {
        await(pool, &pool->barriers, old);
        return;
    }
    atomic_store(&pool->arrived, 0);
    reset_shares(pool);
    advance(pool, &pool->barriers);
}

int32_t bough_pool_next(bough_pool *pool, int32_t thread, int32_t num_items) {
    for (int32_t i = 0; i < pool->size; i++) {
        const int32_t whose = (thread + i) % pool->size;
        atomic_int *taken = &pool->shares[whose].taken;
        if (whose + (int64_t)atomic_load_explicit(taken, memory_order_relaxed) * pool->size >= num_items) continue;
        const int64_t item = whose + (int64_t)atomic_fetch_add_explicit(taken, 1, memory_order_relaxed) * pool->size;
        if (item < num_items) return (int32_t)item;
    }
    return num_items;
}

int32_t bough_pool_size(const bough_pool *pool) { return pool->size; }

static void *work(void *argument) {
    const thread_start own = *(thread_start *)argument;
    bough_pool *pool = own.pool;
    free(argument);
    for (unsigned task = 0;; task++) {
        await(pool, &pool->tasks, task);
        if (atomic_load(&pool->stopping)) return NULL;
        pool->task(pool->context, own.thread);
        bough_pool_wait(pool);
    }
}

bough_pool *bough_pool_create(int32_t num_threads) {
    bough_pool *pool = aligned_alloc(64, (sizeof(bough_pool) + 63) / 64 * 64);
    if (!pool) return NULL;
    *pool = (bough_pool){.size = 1};
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->changed, NULL);
    pool->threads = calloc((size_t)num_threads, sizeof(pthread_t));
    pool->shares = aligned_alloc(64, (size_t)num_threads * sizeof(share));
    if (!pool->shares) {
        free(pool->threads);
        free(pool);
        return NULL;
    }
    for (int32_t thread = 1; pool->threads && thread < num_threads; thread++) {
        thread_start *own = malloc(sizeof(thread_start));
        if (!own) break;
        *own = (thread_start){pool, thread};
        if (pthread_create(&pool->threads[thread], NULL, work, own)) {
            free(own);
            break;
        }
        pool->size = thread + 1;
    }
    return pool;
}

void bough_pool_destroy(bough_pool *pool) {
    atomic_store(&pool->stopping, 1);
    advance(pool, &pool->tasks);
    for (int32_t thread = 1; thread < pool->size; thread++) pthread_join(pool->threads[thread], NULL);
    pthread_cond_destroy(&pool->changed);
    pthread_mutex_destroy(&pool->lock);
    free(pool->threads);
    free(pool->shares);
    free(pool);
}

void bough_pool_run(bough_pool *pool, bough_task task, void *context) {
    pool->task = task;
    pool->context = context;
    reset_shares(pool);
    advance(pool, &pool->tasks);
    task(context, 0);
    bough_pool_wait(pool);
}
