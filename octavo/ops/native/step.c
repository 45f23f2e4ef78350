/* The ends of a decode step: what it feeds, the rows of an embedding, the greedy choice, and what it leaves in its sequences' rows. */
#include "simd.h"
#include "team.h"

struct decode_batch {
    const int64_t *row_ids;
    const int32_t *computed;
    const int64_t *last_token;
    const int32_t *table; /* [rows, width] */
    int64_t *tokens, *positions, *slots;
    int32_t *lengths, *rows;
    int64_t num, ld_table, padding, block_tokens, first;
};

static void decode_batch(struct lane *lane, const void *args) {
    const struct decode_batch *a = args;
    for (int64_t i; (i = lane_claim(lane)) < a->num;) {
        int64_t row = a->row_ids[i], real = row != a->padding, position = real ? a->computed[row] : 0;
        int64_t block = a->table[row * a->ld_table + position / a->block_tokens];
        a->slots[i] = real ? block * a->block_tokens + position % a->block_tokens : -1;
        if (!a->first)
            continue;
        a->tokens[i] = a->last_token[row];
        a->positions[i] = position;
        a->lengths[i] = (int32_t)(position + real);
        a->rows[i] = (int32_t)row;
    }
}

struct note_step {
    int32_t *computed;
    int64_t *last_token;
    const int32_t *rows, *starts; /* [num], [num + 1] */
    const int64_t *sampled, *newest; /* [num_sampled]: rows and tokens */
    int64_t num, num_sampled, ld_newest, padding;
};

static void note_step(struct lane *lane, const void *args) {
    const struct note_step *a = args;
    if (lane_claim(lane))
        return;
    for (int64_t i = 0; i < a->num; i++)
        a->computed[a->rows[i]] += a->starts[i + 1] - a->starts[i];
    for (int64_t i = 0; i < a->num_sampled; i++)
        a->last_token[a->sampled[i]] = a->newest[i * a->ld_newest];
    a->computed[a->padding] = 0;
}

/* Rows of a table that lies row by row or in the panels of panels.c: `item` bytes each for `items` of them, `stride` bytes apart. */
struct table_rows {
    const int64_t *tokens;
    const char *table;
    char *out; /* [num, items * item bytes]: zeros for rows that are elsewhere */
    int64_t num, first, n, panel, row_bytes, items, item, stride; /* row r begins r / panel * panel * row_bytes + r % panel * item bytes in */
};

static void table_row(const struct table_rows *a, int64_t i) {
    int64_t local = a->tokens[i] - a->first, bytes = a->items * a->item;
    char *to = a->out + i * bytes;
    if (local < 0 || local >= a->n) {
        memset(to, 0, (size_t)bytes);
        return;
    }
    const char *from = a->table + local / a->panel * a->panel * a->row_bytes + local % a->panel * a->item;
    for (int64_t j = 0; j < a->items; j++)
        memcpy(to + j * a->item, from + j * a->stride, (size_t)a->item);
}

static void table_rows(struct lane *lane, const void *args) {
    const struct table_rows *a = args;
    for (int64_t i; (i = lane_claim(lane)) < a->num;)
        table_row(a, i);
}

struct packed_rows {
    const int64_t *tokens;
    const uint8_t *codes;
    const uint16_t *scales;
    char *out;
    int64_t num, first, n, k, packing, type; /* packing as in packed.c */
};

static void packed_row(const struct packed_rows *a, int64_t i) {
    int64_t local = a->tokens[i] - a->first, groups = a->k / GROUP, bytes = a->packing == BITS8 ? 512 : 256;
    int64_t numbers = a->packing == BITS4_OFFSET ? 2 * WIDTH : WIDTH;
    for (int64_t g = 0; g < groups; g++) {
        float values[GROUP] = {0};
        if (local >= 0 && local < a->n) {
            int64_t at = local / WIDTH * groups + g, place = local % WIDTH;
            const uint8_t *codes = a->codes + at * bytes + place * 4;
            const uint16_t *scales = a->scales + at * numbers + place;
            float scale = from_f16(scales[0]), offset = a->packing == BITS4_OFFSET ? from_f16(scales[WIDTH]) : 0;
            for (int j = 0; j < GROUP; j++) {
                int quad = j / 4, code;
                if (a->packing == BITS8)
                    code = (int8_t)codes[quad * 64 + j % 4];
                else
                    code = (codes[quad / 2 * 64 + j % 4] >> (quad % 2 * 4) & 15) - (a->packing == BITS4 ? 8 : 0);
                values[j] = (float)code * scale + offset;
            }
        }
        narrow(a->out + (i * a->k + g * GROUP) * dtype_bytes((int)a->type), (int)a->type, values, GROUP);
    }
}

static void packed_rows(struct lane *lane, const void *args) {
    const struct packed_rows *a = args;
    for (int64_t i; (i = lane_claim(lane)) < a->num;)
        packed_row(a, i);
}
