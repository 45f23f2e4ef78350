/* The products of panels.c and packed.c for several rows of x, by AMX's tiles: panels of bf16, and groups of codes once they stand as bytes,
 * are B tiles as they lie in memory. Which rows are enough is measured: see ways.py. Without tiles both are the kernels that they replace. */
#include "amx.h"

#if HAS_TILES
#define TILE_ROWS 16
#define TILE_K 32 /* bf16 along k in a row of a tile */

/* Tiles 0, 1 and, 16 rows further down, 2, 3: sums with two panels; 4, 5: x; 6, 7: the panels. */
INLINE void shape_bf16(int64_t rows) {
    int first = (int)least(rows, TILE_ROWS), second = (int)rows - first;
    struct tile_shapes shapes = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        int count = t >= 6 ? TILE_K / 2 : t == 2 || t == 3 || t == 5 ? second : first;
        shapes.rows[t] = (uint8_t)count;
        shapes.row_bytes[t] = count ? 64 : 0;
    }
    tiles_begin(&shapes);
}

/* sums[p] [rows, 16] of P panels at w with as many rows of x as A tiles hold. */
INLINE void bf16_tiles(int A, int P, const char *x, int64_t step, const char *w, int64_t panel_bytes, int64_t k, float sums[2][2 * TILE_ROWS][WIDTH]) {
    TILE_ZERO(0);
    if (P == 2)
        TILE_ZERO(1);
    if (A == 2)
        TILE_ZERO(2);
    if (A == 2 && P == 2)
        TILE_ZERO(3);
    for (int64_t i = 0; i < k; i += TILE_K) {
        TILE_LOAD(4, x + i * 2, step);
        TILE_LOAD(6, w + i * WIDTH * 2, 64);
        TILE_ADD_BF16(0, 4, 6);
        if (P == 2) {
            TILE_LOAD(7, w + panel_bytes + i * WIDTH * 2, 64);
            TILE_ADD_BF16(1, 4, 7);
        }
        if (A == 2) {
            TILE_LOAD(5, x + TILE_ROWS * step + i * 2, step);
            TILE_ADD_BF16(2, 5, 6);
        }
        if (A == 2 && P == 2)
            TILE_ADD_BF16(3, 5, 7);
    }
    TILE_STORE(0, sums[0][0], 64);
    if (P == 2)
        TILE_STORE(1, sums[1][0], 64);
    if (A == 2)
        TILE_STORE(2, sums[0][TILE_ROWS], 64);
    if (A == 2 && P == 2)
        TILE_STORE(3, sums[1][TILE_ROWS], 64);
}

/* Finishes the outputs n to n + 16 of rows m to m + rows, whose products are `sums`. */
INLINE void put_tile(const struct linear *a, int64_t m, int64_t rows, int64_t n, float sums[][WIDTH]) {
    for (int v = 0; v < VECTORS; v++) {
        int64_t at = n + v * LANES;
        vf bias = a->bias ? load_any(a->bias, at, (int)a->btype) : (vf){0};
        for (int64_t r = 0; r < rows; r++) {
            vf y = (load(sums[r], v * LANES, F32) + bias) * (float)a->scale;
            if (a->residual)
                y += load(a->residual, (m + r) * a->ldr + at, BF16);
            store(a->out, (m + r) * a->ldo + at, BF16, y);
        }
    }
}

/* The outputs of `count` panels for `rows` <= 32 rows from row m of out on. */
INLINE void bf16_rows(int A, const struct linear *a, const char *x, int64_t m, int64_t rows, int64_t panel, int64_t count) {
    int64_t panel_bytes = WIDTH * a->k * 2;
    for (int64_t end = panel + count; panel < end; panel += 2) {
        _Alignas(64) float sums[2][2 * TILE_ROWS][WIDTH];
        const char *w = a->w + panel * panel_bytes;
        int P = end - panel >= 2 ? 2 : 1;
        if (P == 2)
            bf16_tiles(A, 2, x, a->ldx * 2, w, panel_bytes, a->k, sums);
        else
            bf16_tiles(A, 1, x, a->ldx * 2, w, panel_bytes, a->k, sums);
        for (int p = 0; p < P; p++)
            put_tile(a, m, rows, (panel + p) * WIDTH, sums[p]);
    }
}

static void panel_tiles(struct lane *lane, const void *args) {
    const struct linear *a = args;
    if (a->wtype != BF16 || a->xtype != BF16 || a->otype != BF16 || a->k % TILE_K) {
        panels(lane, args);
        return;
    }
    int64_t total = a->n / WIDTH, down = (a->m + BLOCK_M - 1) / BLOCK_M, block = (total + 8 * lane->count - 1) / (8 * lane->count) * 2;
    int64_t across = (total + block - 1) / block;
    for (int64_t item; (item = lane_claim(lane)) < across * down;) {
        int64_t panel = item % across * block, m = item / across * BLOCK_M, end = least(a->m, m + BLOCK_M), shaped = 0;
        for (int64_t rows; m < end; m += rows) {
            const char *x = a->x + m * a->ldx * 2;
            rows = least(2 * TILE_ROWS, end - m);
            if (rows != shaped)
                shape_bf16(shaped = rows);
            if (rows > TILE_ROWS)
                bf16_rows(2, a, x, m, rows, panel, least(block, total - panel));
            else
                bf16_rows(1, a, x, m, rows, panel, least(block, total - panel));
        }
    }
    tiles_end();
}

#define CHUNK 16 /* groups whose codes stand as bytes at once */
#define AT_ONCE 4 /* groups whose sums are under way at once */

/* Tiles 0 to 3: sums; 4: x; 5: codes. */
INLINE void shape_bytes(int64_t rows) {
    struct tile_shapes shapes = {.palette = 1};
    for (int t = 0; t < 6; t++) {
        shapes.rows[t] = (uint8_t)(t == 5 ? GROUP / 4 : rows);
        shapes.row_bytes[t] = t == 4 ? GROUP : 64;
    }
    tiles_begin(&shapes);
}

/* The sums of up to AT_ONCE groups of x with their codes, one after the other so that none waits for the one before. */
INLINE void byte_tiles(int64_t count, const int8_t *x, int64_t step, const uint8_t *codes, int32_t sums[AT_ONCE][TILE_ROWS][WIDTH]) {
#define ONE_GROUP(i)                                                                                                                        \
    if (i < count) {                                                                                                                        \
        TILE_ZERO(i);                                                                                                                       \
        TILE_LOAD(4, x + i * step, GROUP);                                                                                                  \
        TILE_LOAD(5, codes + i * WIDTH * GROUP, 64);                                                                                        \
        TILE_ADD_BYTES(i, 4, 5);                                                                                                            \
        TILE_STORE(i, sums[i][0], 64);                                                                                                      \
    }
    ONE_GROUP(0)
    ONE_GROUP(1)
    ONE_GROUP(2)
    ONE_GROUP(3)
#undef ONE_GROUP
}

typedef uint8_t line __attribute__((vector_size(64)));

/* The codes of a group as bytes without a sign, [8, 16, 4]: those of 8 bits have 128 added, which the offset takes back. */
INLINE void spread_codes(int packing, const uint8_t *from, uint8_t *to) {
    line some, part;
    for (int q = 0; q < (packing == BITS8 ? 8 : 4); q++) {
        memcpy(&some, from + q * 64, 64);
        if (packing == BITS8) {
            part = some ^ 0x80;
            memcpy(to + q * 64, &part, 64);
            continue;
        }
        part = some & 15;
        memcpy(to + q * 128, &part, 64);
        part = some >> 4;
        memcpy(to + q * 128 + 64, &part, 64);
    }
}

INLINE vf row_of(const int32_t *sums, int v) {
    vi some;
    memcpy(&some, sums + v * LANES, sizeof some);
    return __builtin_convertvector(some, vf);
}

/* acc [rows, 16] grows by `count` groups from g on, whose codes stand as bytes. `rows` is literally 16, or else any smaller number. The steps
 * of each sum are those of packed_panel: not a bit changes. */
INLINE void byte_piece(int64_t rows, int packing, const struct rounded *x, int64_t m, int64_t g, int64_t count, const uint8_t *codes,
                       const uint16_t *scales, float *acc) {
    _Alignas(64) int32_t high[AT_ONCE][TILE_ROWS][WIDTH], low[AT_ONCE][TILE_ROWS][WIDTH];
    int64_t numbers = packing == BITS4_OFFSET ? 2 * WIDTH : WIDTH, step = x->rows * GROUP;
    uint64_t mine = (((uint64_t)1 << rows) - 1) << m % PACKED_ROWS;
    vf sums[TILE_ROWS][VECTORS];
#pragma GCC unroll 16
    for (int64_t r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++)
            sums[r][v] = load(acc, r * WIDTH + v * LANES, F32);
    for (int64_t end = g + count; g < end; g += AT_ONCE, codes += AT_ONCE * WIDTH * GROUP, scales += AT_ONCE * numbers) {
        int64_t some = least(AT_ONCE, end - g), at = (g * x->rows + m) * GROUP;
        uint64_t both = 0;
        for (int64_t i = 0; i < some; i++)
            both |= x->both[(g + i) * x->blocks + m / PACKED_ROWS] & mine;
        byte_tiles(some, x->high + at, step, codes, high);
        if (both)
            byte_tiles(some, x->low + at, step, codes, low);
        for (int64_t i = 0; i < some; i++) {
            const float *xscale = x->scale + (g + i) * x->rows + m, *xsum = x->scaled_sum + (g + i) * x->rows + m;
            for (int v = 0; v < VECTORS; v++) {
                struct factors f = factors_at(scales + i * numbers, packing, v);
                vf coarse = f.scale * 128.0f;
#pragma GCC unroll 16
                for (int64_t r = 0; r < rows; r++) {
                    sums[r][v] += row_of(high[i][r], v) * (coarse * xscale[r]);
                    sums[r][v] += f.offset * xsum[r];
                }
                if (!(x->both[(g + i) * x->blocks + m / PACKED_ROWS] & mine))
                    continue;
                MEMORY_IS_READ(); /* anew: kept from the loop above, the factors of x would drive the sums out of the registers */
#pragma GCC unroll 16
                for (int64_t r = 0; r < rows; r++) /* rows of which the low codes do not count have zeros there */
                    sums[r][v] += row_of(low[i][r], v) * (f.scale * xscale[r]);
            }
        }
    }
#pragma GCC unroll 16
    for (int64_t r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++)
            store(acc, r * WIDTH + v * LANES, F32, sums[r][v]);
}

INLINE void packed_panel_tiles(const struct packed *a, int packing, const struct rounded *x, int64_t panel, int64_t m, int64_t rows, float *acc) {
    _Alignas(64) uint8_t codes[CHUNK * WIDTH * GROUP];
    int64_t groups = a->k / GROUP, code_bytes = packing == BITS8 ? 512 : 256, numbers = packing == BITS4_OFFSET ? 2 * WIDTH : WIDTH, shaped = 0;
    memset(acc, 0, (size_t)(rows * WIDTH) * sizeof(float));
    for (int64_t g = 0; g < groups; g += CHUNK) {
        int64_t count = least(CHUNK, groups - g), at = panel * groups + g;
        for (int64_t i = 0; i < count; i++)
            spread_codes(packing, a->codes + (at + i) * code_bytes, codes + i * WIDTH * GROUP);
        for (int64_t r = 0; r < rows; r += TILE_ROWS) {
            int64_t some = least(TILE_ROWS, rows - r);
            if (some != shaped)
                shape_bytes(shaped = some);
            if (some == TILE_ROWS)
                byte_piece(TILE_ROWS, packing, x, m + r, g, count, codes, a->scales + at * numbers, acc + r * WIDTH);
            else
                byte_piece(some, packing, x, m + r, g, count, codes, a->scales + at * numbers, acc + r * WIDTH);
        }
    }
}

static void packed_tile_sums(const struct packed *a, const struct rounded *x, int64_t panel, int64_t m, int64_t rows, float *acc) {
    switch (a->packing) {
    case BITS8: packed_panel_tiles(a, BITS8, x, panel, m, rows, acc); break;
    case BITS4: packed_panel_tiles(a, BITS4, x, panel, m, rows, acc); break;
    default: packed_panel_tiles(a, BITS4_OFFSET, x, panel, m, rows, acc); break;
    }
}

static void packed_tiles(struct lane *lane, const void *args) {
    packed_by(lane, args, packed_tile_sums);
    tiles_end();
}
#else
#define panel_tiles panels
#define packed_tiles packed
#endif
