/* The whole library for one instruction set, and what Python calls of it. */
#include "team.h"

#include "elementwise.c"
#include "linear.c"
#include "panels.c"
#include "attention.c"
#include "draw.c"
#include "packed.c"
#include "amx.c"
#include "step.c"
#include "expand.c"

#define EXPORT __attribute__((visibility("default")))

/* In the order of `Op` in binding.py. */
static const struct kernel kernels[] = {
    {linear}, {panels}, {rms_norm}, {gate}, {rope_and_write}, {argmax}, {attention, prepare_attention}, {draw}, {packed, prepare_packed},
    {decode_batch}, {note_step}, {packed_rows}, {table_rows}, {draw_rows}, {pack_blocks}, {panel_tiles},
    {packed_tiles, prepare_packed_tiles}, {expand}, {pack_panels},
};

EXPORT struct team *octavo_open(int count, const int *cores) { return team_open(count, cores); }

EXPORT void octavo_close(struct team *team) { team_close(team); }

/* `alone` keeps the operation on the calling thread. */
EXPORT void octavo_run(struct team *team, int op, const void *args, int alone) {
    if (alone)
        team_run_alone(team, kernels[op], args);
    else
        team_run(team, kernels[op], args);
}

/* Operations one after the other, as they were recorded. */
struct recorded {
    const void *args;
    int64_t op, alone;
};

EXPORT void octavo_replay(struct team *team, const struct recorded *tape, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        octavo_run(team, (int)tape[i].op, tape[i].args, (int)tape[i].alone);
}
