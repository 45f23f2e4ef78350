#define _GNU_SOURCE
#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define SPIN_S 80e-6 /* how long an idle lane looks for work before it sleeps */
#define LINE 64      /* bytes of a cache line: counters that different lanes write lie on lines of their own */

#define CLOSED (1 << 30) /* in `joined`: the operation takes no more lanes */

struct team {
    int count;
    struct lane *lanes;
    pthread_t *threads;    /* of lanes 1 and up */
    pthread_mutex_t entry; /* one operation at a time */
    pthread_mutex_t sleep;
    pthread_cond_t wake;
    void (*run)(struct lane *lane, const void *args);
    const void *args;
    void *shared;
    size_t shared_bytes;
    _Alignas(LINE) _Atomic uint32_t generation; /* of operations given out */
    _Atomic int closing;
    _Atomic int sleepers;
    _Alignas(LINE) _Atomic int joined; /* lanes besides the caller that take part in the operation */
    _Alignas(LINE) _Atomic int done;   /* those of them that have finished */
    _Alignas(LINE) _Atomic int64_t next;
};

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* One turn of a wait that somebody else ends soon: spins at first, then lets others run in case there are fewer cores than lanes. */
static inline void wait_turn(int turn) {
    if (turn < 4000)
        relax();
    else
        sched_yield();
}

static uint32_t next_generation(struct team *team, uint32_t seen) {
    double until = seconds() + SPIN_S;
    for (int turn = 0;; turn++) {
        uint32_t now = atomic_load_explicit(&team->generation, memory_order_acquire);
        if (now != seen)
            return now;
        if ((turn & 63) == 63 && seconds() > until)
            break;
        relax();
    }
    pthread_mutex_lock(&team->sleep);
    atomic_fetch_add(&team->sleepers, 1); /* before the look at generation: either it sees us, or we see it */
    while (atomic_load(&team->generation) == seen)
        pthread_cond_wait(&team->wake, &team->sleep);
    atomic_fetch_sub(&team->sleepers, 1);
    pthread_mutex_unlock(&team->sleep);
    return atomic_load(&team->generation);
}

static void publish(struct team *team) {
    atomic_fetch_add(&team->generation, 1);
    if (atomic_load(&team->sleepers)) {
        pthread_mutex_lock(&team->sleep);
        pthread_cond_broadcast(&team->wake);
        pthread_mutex_unlock(&team->sleep);
    }
}

/* A lane that comes late, even one that meant to join the operation before, joins what is open now or nothing. */
static void *work(void *of) {
    struct lane *lane = of;
    struct team *team = lane->team;
    for (uint32_t seen = 0;;) {
        seen = next_generation(team, seen);
        if (atomic_load(&team->closing))
            return NULL;
        if (atomic_fetch_add(&team->joined, 1) & CLOSED)
            continue;
        team->run(lane, team->args);
        atomic_fetch_add_explicit(&team->done, 1, memory_order_release);
    }
}

static void pin(pthread_t thread, int core) {
#ifdef __linux__
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    pthread_setaffinity_np(thread, sizeof set, &set); /* a core outside the allowed set leaves the thread where it was */
#else
    (void)thread, (void)core;
#endif
}

static void name_thread(pthread_t thread) {
#ifdef __linux__
    pthread_setname_np(thread, "octavo-lane");
#else
    (void)thread;
#endif
}

struct team *team_open(int count, const int *cores) {
    size_t bytes = (sizeof(struct team) + LINE - 1) / LINE * LINE;
    struct team *team = aligned_alloc(LINE, bytes);
    *team = (struct team){.lanes = calloc((size_t)count, sizeof *team->lanes), .threads = calloc((size_t)count, sizeof *team->threads)};
    atomic_store(&team->joined, CLOSED);
    pthread_mutex_init(&team->entry, NULL);
    pthread_mutex_init(&team->sleep, NULL);
    pthread_cond_init(&team->wake, NULL);
    for (int i = 0; i < count; i++)
        team->lanes[i] = (struct lane){.count = count, .team = team};
    for (team->count = 1; team->count < count; team->count++) {
        int i = team->count;
        if (pthread_create(&team->threads[i], NULL, work, &team->lanes[i])) {
            team_close(team);
            return NULL;
        }
        name_thread(team->threads[i]);
        if (cores)
            pin(team->threads[i], cores[i]);
    }
    if (cores && count > 0)
        pin(pthread_self(), cores[0]);
    return team;
}

void team_close(struct team *team) {
    atomic_store(&team->closing, 1);
    publish(team);
    for (int i = 1; i < team->count; i++)
        pthread_join(team->threads[i], NULL);
    for (int i = 0; i < team->count; i++)
        free(team->lanes[i].scratch);
    free(team->shared);
    pthread_cond_destroy(&team->wake);
    pthread_mutex_destroy(&team->sleep);
    pthread_mutex_destroy(&team->entry);
    free(team->threads);
    free(team->lanes);
    free(team);
}

void team_run(struct team *team, struct kernel kernel, const void *args) {
    pthread_mutex_lock(&team->entry);
    struct lane *caller = &team->lanes[0];
    if (kernel.prepare)
        kernel.prepare(caller, args);
    team->run = kernel.run;
    team->args = args;
    atomic_store_explicit(&team->next, 0, memory_order_relaxed);
    atomic_store_explicit(&team->done, 0, memory_order_relaxed);
    if (team->count > 1) {
        atomic_store_explicit(&team->joined, 0, memory_order_release);
        publish(team);
    }
    kernel.run(caller, args);
    if (team->count > 1) {
        int joined = atomic_fetch_or(&team->joined, CLOSED);
        for (int turn = 0; atomic_load_explicit(&team->done, memory_order_acquire) != joined; turn++)
            wait_turn(turn);
    }
    pthread_mutex_unlock(&team->entry);
}

void team_run_alone(struct team *team, struct kernel kernel, const void *args) {
    pthread_mutex_lock(&team->entry);
    struct lane *caller = &team->lanes[0];
    caller->count = 1;
    atomic_store_explicit(&team->next, 0, memory_order_relaxed);
    if (kernel.prepare)
        kernel.prepare(caller, args);
    kernel.run(caller, args);
    caller->count = team->count;
    pthread_mutex_unlock(&team->entry);
}

int64_t lane_claim(struct lane *lane) { return atomic_fetch_add_explicit(&lane->team->next, 1, memory_order_relaxed); }

void lane_wait(const int32_t *counter, int32_t goal) {
    for (int turn = 0; __atomic_load_n(counter, __ATOMIC_ACQUIRE) < goal; turn++)
        wait_turn(turn);
}

static void grow(void **memory, size_t *had, size_t bytes) {
    if (bytes <= *had)
        return;
    free(*memory);
    *had = (bytes + 4095) / 4096 * 4096;
    *memory = aligned_alloc(64, *had);
    if (!*memory) {
        fprintf(stderr, "octavo: no memory for %zu bytes of scratch\n", bytes);
        abort();
    }
}

void *lane_scratch(struct lane *lane, size_t bytes) {
    grow(&lane->scratch, &lane->scratch_bytes, bytes);
    return lane->scratch;
}

void *lane_shared(struct lane *lane, size_t bytes) {
    grow(&lane->team->shared, &lane->team->shared_bytes, bytes);
    return lane->team->shared;
}
