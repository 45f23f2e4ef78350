/* The products of panels.c and packed.c by AMX's tiles: panels of bf16 are B tiles as they lie in memory. Which rows are enough is measured: see
 * ways.py. Without tiles both are the kernels that they replace. */
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
    const char *residual = a->residual;
    char *out = a->out;
    int64_t ldr = a->ldr, ldo = a->ldo;
    float scale = (float)a->scale;
    for (int v = 0; v < VECTORS; v++) {
        int64_t at = n + v * LANES;
        vf bias = a->bias ? load_any(a->bias, at, (int)a->btype) : (vf){0};
        for (int64_t r = 0; r < rows; r++) {
            vf y = (load(sums[r], v * LANES, F32) + bias) * scale;
            store(out, (m + r) * ldo + at, BF16, residual ? y + load(residual, (m + r) * ldr + at, BF16) : y);
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

/* Packed weights for many rows: two panels at a time stand as bf16, each number rounded once, for PASSING rows that then go by. x is rounded to
 * bf16, too, which is closer than the 8 bits that packed.c gives most of it. */
#define PASSING 256

/* The numbers of two along k side by side. */
INLINE vu pair_of(vf first, vf second) {
#if defined(__AVX512BF16__)
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return (vu)_mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
#else
    return widen(bf16_of(first)) | widen(bf16_of(second)) << 16;
#endif
}

/* The i-th of the four codes in each 32 bits of a line of bytes. */
INLINE vf code_of(vu four, int i, int packing) {
    vi code = packing == BITS8 ? (vi)(four << (24 - 8 * i)) >> 24 : (vi)(four >> 8 * i & 255);
    return __builtin_convertvector(code, vf);
}

/* A panel as [k / 2, 16, 2] bf16. */
INLINE void widen_codes(const struct packed *a, int packing, int64_t panel, char *to) {
    int64_t groups = a->k / GROUP, code_bytes = packing == BITS8 ? 512 : 256, numbers = packing == BITS4_OFFSET ? 2 * WIDTH : WIDTH;
    const uint8_t *codes = a->codes + panel * groups * code_bytes;
    const uint16_t *scales = a->scales + panel * groups * numbers;
    for (int64_t g = 0; g < groups; g++, codes += code_bytes, scales += numbers, to += GROUP * WIDTH * 2)
        for (int v = 0; v < VECTORS; v++) {
            vf scale = load(scales, v * LANES, F16);
            vf offset = packing == BITS4_OFFSET ? load(scales, WIDTH + v * LANES, F16) : packing == BITS4 ? scale * -8.0f : (vf){0};
#pragma GCC unroll 8
            for (int q = 0; q < GROUP / 4; q++) {
                vu four;
                memcpy(&four, codes + (packing == BITS8 ? q : q / 2) * 64 + v * LANES * 4, sizeof four);
                if (packing != BITS8)
                    four = (q % 2 ? four >> 4 : four) & 0x0f0f0f0f;
                for (int i = 0; i < 4; i += 2) {
                    vu pair = pair_of(code_of(four, i, packing) * scale + offset, code_of(four, i + 1, packing) * scale + offset);
                    memcpy(to + ((2 * q + i / 2) * WIDTH + v * LANES) * 4, &pair, sizeof pair);
                }
            }
        }
}

static void widen_panel(const struct packed *a, int64_t panel, char *to) {
    switch (a->packing) {
    case BITS8: widen_codes(a, BITS8, panel, to); break;
    case BITS4: widen_codes(a, BITS4, panel, to); break;
    default: widen_codes(a, BITS4_OFFSET, panel, to); break;
    }
}

/* x in bf16, [m, k], where it is not that already. */
struct narrowed {
    int32_t done; /* rows that are ready */
    _Alignas(64) char x[];
};

INLINE int is_narrow(const struct packed *a) { return a->xtype == BF16 && !a->norm; }

static void prepare_packed_tiles(struct lane *lane, const void *args) {
    const struct packed *a = args;
    if (!is_narrow(a))
        ((struct narrowed *)lane_shared(lane, sizeof(struct narrowed) + (size_t)(a->m * a->k * 2)))->done = 0;
}

static void narrow_row(const struct packed *a, int64_t m, float *row, char *to) {
    convert(row, a->x + m * a->ldx * dtype_bytes((int)a->xtype), (int)a->xtype, a->k);
    if (a->norm)
        scale_by(row, a->k, inverse_rms(row, a->k, (float)a->eps), a->norm);
    narrow(to, BF16, row, a->k);
}

/* The outputs of a panel, and with P = 2 of the next or, with a gate, of what it multiplies: both stand at w. */
INLINE void packed_pass(int P, const struct packed *a, const char *x, int64_t step, const char *w, int64_t panel, int64_t m, int64_t rows) {
    int64_t panel_bytes = a->k * WIDTH * 2, shaped = 0;
    for (int64_t end = m + rows; m < end; m += rows, x += rows * step) {
        _Alignas(64) float sums[2][2 * TILE_ROWS][WIDTH];
        rows = least(2 * TILE_ROWS, end - m);
        if (rows != shaped)
            shape_bf16(shaped = rows);
        if (rows > TILE_ROWS)
            bf16_tiles(2, P, x, step, w, panel_bytes, a->k, sums);
        else
            bf16_tiles(1, P, x, step, w, panel_bytes, a->k, sums);
        finish_packed(a, panel, m, rows, sums[0][0], sums[1][0]);
        if (P == 2 && !a->gate)
            finish_packed(a, panel + 1, m, rows, sums[1][0], NULL);
    }
}

static void packed_tiles(struct lane *lane, const void *args) {
    const struct packed *a = args;
    int64_t panel_bytes = a->k * WIDTH * 2, rows_at_once = 4, first = 0, item = lane_claim(lane), step = a->ldx * 2;
    char *weights = lane_scratch(lane, (size_t)(2 * panel_bytes > a->k * 4 ? 2 * panel_bytes : a->k * 4));
    const char *x = a->x;
    if (!is_narrow(a)) {
        struct narrowed *to = lane_shared(lane, 0);
        x = to->x, step = a->k * 2;
        first = (a->m + rows_at_once - 1) / rows_at_once;
        for (; item < first; item = lane_claim(lane)) {
            int64_t begin = item * rows_at_once, end = least(a->m, begin + rows_at_once);
            for (int64_t m = begin; m < end; m++)
                narrow_row(a, m, (float *)weights, to->x + m * step);
            __atomic_add_fetch(&to->done, (int32_t)(end - begin), __ATOMIC_RELEASE);
        }
        lane_wait(&to->done, (int32_t)a->m);
    }
    int64_t total = ((a->gate ? a->n / 2 : a->n) + WIDTH - 1) / WIDTH, side = a->gate ? 1 : 2;
    int64_t across = (total + side - 1) / side, down = (a->m + PASSING - 1) / PASSING;
    for (; item < first + across * down; item = lane_claim(lane)) {
        int64_t panel = (item - first) % across * side, m = (item - first) / across * PASSING, rows = least(PASSING, a->m - m);
        int64_t other = a->gate ? panel + total : panel + 1;
        widen_panel(a, panel, weights);
        if (a->gate || other < total) {
            widen_panel(a, other, weights + panel_bytes);
            packed_pass(2, a, x + m * step, step, weights, panel, m, rows);
        } else {
            packed_pass(1, a, x + m * step, step, weights, panel, m, rows);
        }
    }
    tiles_end();
}
#else
#define panel_tiles panels
#define packed_tiles packed
#define prepare_packed_tiles prepare_packed
#endif
