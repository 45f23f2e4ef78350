/* A team of threads that runs one operation after another over the same cores.
 *
 * The caller is lane 0. Work is cut into numbered pieces, and each lane takes the next that nobody took. So an operation needs no lane but
 * the caller's: one that the system lets run late finds the work done, and nobody waits for it. Lanes spin for a bounded time after an
 * operation, since the next one of a model step follows within microseconds, and then sleep, so an idle engine takes no CPU. */
#ifndef OCTAVO_TEAM_H
#define OCTAVO_TEAM_H

#include <stddef.h>
#include <stdint.h>

struct team;

/* What one thread knows while it runs an operation. */
struct lane {
    int count; /* lanes of the team, this one included: how finely to cut the work */
    struct team *team;
    void *scratch; /* private to this lane, kept between operations */
    size_t scratch_bytes;
};

/* `run` is called by each lane that takes part, perhaps more than once; `prepare`, which may be null, by the caller before. */
struct kernel {
    void (*run)(struct lane *lane, const void *args);
    void (*prepare)(struct lane *lane, const void *args);
};

/* Null if a thread could not be started. `cores` may be null (no pinning), else it names one core a lane. */
struct team *team_open(int count, const int *cores);
void team_close(struct team *team);
void team_run(struct team *team, struct kernel kernel, const void *args);
/* On the calling thread only: the kernel sees a team of one. */
void team_run_alone(struct team *team, struct kernel kernel, const void *args);

/* The next number of 0, 1, 2 ... of this operation that no lane took yet. */
int64_t lane_claim(struct lane *lane);
/* Waits until a counter, which lanes that take part raise, has come to `goal`. */
void lane_wait(const int32_t *counter, int32_t goal);
/* At least `bytes` of private memory aligned to 64; what it held before is lost when it grows. Ends the process when there is none. */
void *lane_scratch(struct lane *lane, size_t bytes);
/* The same, one piece for all lanes: asked for in `prepare`, found again by the others with 0 bytes. */
void *lane_shared(struct lane *lane, size_t bytes);

#endif
