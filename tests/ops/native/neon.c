/* A product with packed weights, run by an emulator of another machine: reads m, n, k and the packing, then x, codes and scales from standard
 * input, and writes the result to standard output. Linked with library.c and team.c. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct team;
struct team *octavo_open(int count, const int *cores);
void octavo_run(struct team *team, int op, const void *args, int alone);

enum { PACKED = 8 }; /* `Op` in binding.py */

struct packed { /* as in packed.c */
    const void *x, *codes, *scales, *bias, *norm, *residual;
    void *out;
    int64_t m, n, k, ldx, ldr, ldo, packing, gate, xtype, btype, otype;
    double eps, scale;
};

static void *taken(size_t bytes) {
    void *memory = malloc(bytes);
    if (!memory || fread(memory, 1, bytes, stdin) != bytes)
        exit(1);
    return memory;
}

int main(void) {
    int64_t *size = taken(4 * sizeof *size), m = size[0], n = size[1], k = size[2], packing = size[3], panels = (n + 15) / 16;
    const void *x = taken((size_t)(m * k * 4)), *codes = taken((size_t)(panels * 16 * k / (packing == 2 ? 1 : 2)));
    const void *scales = taken((size_t)(panels * 16 * k / 32 * (packing == 1 ? 2 : 1) * 2));
    void *out = malloc((size_t)(m * n * 4));
    struct packed args = {.x = x, .codes = codes, .scales = scales, .out = out, .m = m, .n = n, .k = k, .ldx = k, .ldo = n,
                          .packing = packing, .scale = 1};
    octavo_run(octavo_open(2, NULL), PACKED, &args, 0);
    return fwrite(out, 4, (size_t)(m * n), stdout) != (size_t)(m * n);
}
