/* Runs operations for a process on another machine, under an emulator. Each comes by standard input: its number, whether it stays on the calling
 * thread, its arguments, and the memory that they point into, as it lies there. That memory goes back by standard output. Linked with library.c
 * and team.c. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct team;
struct team *octavo_open(int count, const int *cores);
void octavo_run(struct team *team, int op, const void *args, int alone);

struct region {
    uint64_t there, bytes; /* its address in the other process */
    char *here;
};

static int take(void *to, size_t bytes) { return fread(to, 1, bytes, stdin) == bytes; }

/* Pointers, which are what lies within a region, to where the region is here. */
static void relocate(uint64_t *words, int64_t count, const struct region *regions, int64_t num) {
    for (int64_t i = 0; i < count; i++)
        for (int64_t r = 0; r < num; r++)
            if (words[i] - regions[r].there < regions[r].bytes) {
                words[i] = (uint64_t)regions[r].here + (words[i] - regions[r].there);
                break;
            }
}

int main(void) {
    struct team *team = octavo_open(2, NULL);
    int64_t head[4]; /* op, alone, words of arguments, regions */
    while (take(head, sizeof head)) {
        uint64_t *words = malloc((size_t)head[2] * 8);
        struct region *regions = calloc((size_t)head[3], sizeof *regions);
        int whole = take(words, (size_t)head[2] * 8);
        for (int64_t r = 0; r < head[3] && whole; r++) {
            whole = take(regions + r, 16);
            regions[r].here = malloc(regions[r].bytes); /* no larger: an emulator's memory ends there, too */
            whole = whole && take(regions[r].here, regions[r].bytes);
        }
        if (!whole)
            return 1;
        relocate(words, head[2], regions, head[3]);
        octavo_run(team, (int)head[0], words, (int)head[1]);
        for (int64_t r = 0; r < head[3]; r++) {
            fwrite(regions[r].here, 1, regions[r].bytes, stdout);
            free(regions[r].here);
        }
        free(regions);
        free(words);
        fflush(stdout);
    }
    return 0;
}
