/* What Python calls: which instruction sets this machine has, teams, and one operation at a time. */
#include "team.h"

#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#define VARIANT(name) extern const kernel kernels_##name[];
#include "variants.h"
#undef VARIANT

#define EXPORT __attribute__((visibility("default")))

static int supported(const char *name) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    int v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
    if (!strcmp(name, "avx512bf16"))
        return v4 && __builtin_cpu_supports("avx512bf16");
    if (!strcmp(name, "avx512vnni"))
        return v4;
    if (!strcmp(name, "avx2"))
        return v3;
#endif
    return !strcmp(name, "plain");
}

/* The kernels of an instruction set, or null where it was not compiled in or the machine lacks it. */
EXPORT const kernel *octavo_kernels(const char *name) {
#define VARIANT(set) \
    if (!strcmp(name, #set) && supported(name)) \
        return kernels_##set;
#include "variants.h"
#undef VARIANT
    return NULL;
}

EXPORT struct team *octavo_open(int count, const int *cores) { return team_open(count, cores); }

EXPORT void octavo_close(struct team *team) { team_close(team); }

/* `alone` keeps the operation on the calling thread. */
EXPORT void octavo_run(struct team *team, const kernel *kernels, int op, const void *args, int alone) {
    if (alone)
        team_run_alone(team, kernels[op], args);
    else
        team_run(team, kernels[op], args);
}

/* Huge pages for the memory from `at` on, to its ends and beyond: most tensors are smaller than one. At once if the system can, else as
 * it finds time; where it has none, nothing happens. */
EXPORT void octavo_advise(void *at, size_t bytes) {
#ifdef __linux__
    uintptr_t page = 2 << 20, begin = (uintptr_t)at / page * page, end = ((uintptr_t)at + bytes + page - 1) / page * page;
    for (; begin < end; begin += page) { /* page by page, since one that cannot be ends the call */
        madvise((void *)begin, page, 14 /* MADV_HUGEPAGE */);
        madvise((void *)begin, page, 25 /* MADV_COLLAPSE */);
    }
#else
    (void)at, (void)bytes;
#endif
}
