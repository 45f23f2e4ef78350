/* A team of threads that runs one operation after another over the same cores.
 *
 * The caller is lane 0. The other lanes spin for a bounded time after an operation, since the next one of a model step follows within
 * microseconds, and then sleep, so an idle engine takes no CPU. */
#ifndef OCTAVO_TEAM_H
#define OCTAVO_TEAM_H

#include <stddef.h>
#include <stdint.h>

struct team;

/* What one thread knows while it runs an operation. */
struct lane {
    int index, count; /* which lane of how many */
    struct team *team;
    void *scratch; /* private to this lane, kept between operations */
    size_t scratch_bytes;
};

typedef void (*kernel)(struct lane *lane, const void *args);

/* Null if a thread could not be started. `cores` may be null (no pinning), else it names one core a lane. */
struct team *team_open(int count, const int *cores);
void team_close(struct team *team);
void team_run(struct team *team, kernel run, const void *args);
/* On the calling thread only: the kernel sees a team of one. */
void team_run_alone(struct team *team, kernel run, const void *args);

/* For kernels: the next number of 0, 1, 2 ... that no lane took yet; starts over after each barrier and each operation. */
int64_t lane_claim(struct lane *lane);
/* Waits until every lane of the team is here. */
void lane_barrier(struct lane *lane);
/* At least `bytes` of private memory aligned to 64; what it held before is lost when it grows. Ends the process when there is none. */
void *lane_scratch(struct lane *lane, size_t bytes);
/* The same, one piece for all lanes, each of which must call: waits for all. Kept between operations. */
void *lane_shared(struct lane *lane, size_t bytes);

#endif
