/* out = residual + scale (x w^T + bias) with w as checkpoints hold it, [out features, in features] row by row: no second copy, whatever reads w besides.
 *
 * One shape of inner loop serves decode and prefill: a tile of dot products of R rows of w with M rows of x along k, all in registers. With
 * few rows of x it runs at the speed of memory; with many, w's block stays in the second cache while the rows of x go by. */
#include "simd.h"
#include "team.h"

struct linear {
    const char *x, *w, *bias, *residual; /* bias and residual, which has the type of out, may be null */
    char *out;
    int64_t m, n, k;
    int64_t ldx, ldw, ldr, ldo; /* elements from row to row */
    int64_t xtype, wtype, btype, otype;
    double scale;
};

#define BLOCK_N 64
#define BLOCK_M 96
#if defined(__AVX512F__) || defined(__aarch64__)
#define TILE_M 6
#define TILE_R 4 /* 24 sums in the 32 registers */
#elif defined(__AVX2__)
#define TILE_M 6
#define TILE_R 2 /* 12 in 16 */
#else
#define TILE_M 2
#define TILE_R 4
#endif

struct tile {
    const char *w; /* R rows */
    const char *x; /* M rows */
    int64_t ldw, ldx, k;
};

/* Fetches the tile after next while this one is read, in the order of memory: R streams a row's length long are too short for the
 * machine's own prefetcher, which made a third of the speed. `width` bytes of all rows belong to each of the `step` elements at i. */
INLINE void fetch_ahead(const struct tile *t, int64_t width, int64_t i, int64_t step) {
    const char *next = t->w + width * (2 * t->ldw + i);
#pragma GCC unroll 4
    for (int64_t line = 0; line < width * step; line += 64)
        __builtin_prefetch(next + line);
}

/* sums[r][m]: four partial sums of each dot product. xtype is F32, or BF16 where the machine multiplies pairs of bf16. */
INLINE void dot_tile(int R, int M, int wtype, int xtype, const struct tile *t, v4 *sums) {
    vf acc[4][TILE_M];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int m = 0; m < M; m++)
            acc[r][m] = (vf){0};
    int64_t i = 0;
#if defined(__AVX512BF16__)
    if (wtype == BF16 && xtype == BF16) {
        const uint16_t *w = (const uint16_t *)t->w, *x = (const uint16_t *)t->x;
        for (; i < t->k; i += 32) {
            __mmask32 in = t->k - i >= 32 ? 0xffffffffu : (1u << (t->k - i)) - 1;
            __m512bh xs[TILE_M];
            fetch_ahead(t, R * 2, i, 32);
#pragma GCC unroll 8
            for (int m = 0; m < M; m++)
                xs[m] = (__m512bh)_mm512_maskz_loadu_epi16(in, x + m * t->ldx + i);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) {
                __m512bh ws = (__m512bh)_mm512_maskz_loadu_epi16(in, w + r * t->ldw + i);
#pragma GCC unroll 8
                for (int m = 0; m < M; m++)
                    acc[r][m] = (vf)_mm512_dpbf16_ps((__m512)acc[r][m], ws, xs[m]);
            }
        }
    }
#endif
    for (; i + LANES <= t->k; i += LANES) {
        vf ws[4];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            ws[r] = load(t->w, r * t->ldw + i, wtype);
        fetch_ahead(t, R * dtype_bytes(wtype), i, LANES);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            vf xs = load(t->x, m * t->ldx + i, xtype);
            KEEP(xs);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
                acc[r][m] += ws[r] * xs;
        }
    }
    if (i < t->k) {
        for (int m = 0; m < M; m++) {
            vf xs = load_part(t->x, m * t->ldx + i, xtype, t->k - i);
            for (int r = 0; r < R; r++)
                acc[r][m] += load_part(t->w, r * t->ldw + i, wtype, t->k - i) * xs;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int m = 0; m < M; m++)
            sums[r * M + m] = quarter(acc[r][m]);
}

/* Adds up and writes the tile of outputs n to n + R by rows m to m + M. */
static __attribute__((noinline)) void finish(const struct linear *a, int M, int R, const v4 *sums, int64_t m, int64_t n) {
    float flat[4 * TILE_M + 3];
    for (int i = 0; i < R * M; i += 4) {
        v4 four = sums4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
        memcpy(flat + i, &four, sizeof four);
    }
    for (int r = 0; r < R; r++) {
        float bias = a->bias ? get(a->bias, n + r, (int)a->btype) : 0;
        for (int i = 0; i < M; i++) {
            float y = (float)a->scale * (flat[r * M + i] + bias);
            if (a->residual)
                y += get(a->residual, (m + i) * a->ldr + n + r, (int)a->otype);
            put(a->out, (m + i) * a->ldo + n + r, (int)a->otype, y);
        }
    }
}

/* M rows of x against rows [n, n + count) of w; the results go to rows m and up of out. */
INLINE void stripe(const struct linear *a, int wtype, int xtype, int M, const void *x, int64_t ldx, int64_t m, int64_t n, int64_t count) {
    const int R = M <= 2 ? 4 : TILE_R;
    for (int64_t end = n + count; n < end;) {
        struct tile t = {a->w + n * a->ldw * dtype_bytes(wtype), x, a->ldw, ldx, a->k};
        v4 sums[4 * TILE_M + 3];
        int rows = R;
        if (end - n >= R) {
            dot_tile(R, M, wtype, xtype, &t, sums);
        } else {
            dot_tile(1, M, wtype, xtype, &t, sums);
            rows = 1;
        }
        finish(a, M, rows, sums, m, n);
        n += rows;
    }
}

/* `rows` rows of x, at most TILE_M. */
INLINE void rows_of(const struct linear *a, int wtype, int xtype, int64_t rows, const char *x, int64_t ldx, int64_t m, int64_t n, int64_t count) {
    int64_t row_bytes = ldx * dtype_bytes(xtype);
    if (TILE_M >= 6 && rows == 6) {
        stripe(a, wtype, xtype, 6, x, ldx, m, n, count);
        return;
    }
    if (TILE_M >= 4 && rows >= 4) {
        stripe(a, wtype, xtype, 4, x, ldx, m, n, count);
        rows -= 4, m += 4, x += 4 * row_bytes;
    }
    if (rows >= 2) {
        stripe(a, wtype, xtype, 2, x, ldx, m, n, count);
        rows -= 2, m += 2, x += 2 * row_bytes;
    }
    if (rows)
        stripe(a, wtype, xtype, 1, x, ldx, m, n, count);
}

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE void linear_of(struct lane *lane, const struct linear *a, int wtype, int xtype) {
    /* Few rows: blocks small enough to share out evenly. Many: blocks of w that stay in the second cache while BLOCK_M rows of x pass. */
    int64_t spread = (a->n / (4 * lane->count) + 3) / 4 * 4;
    int64_t block_n = spread < 8 ? 8 : least(spread, BLOCK_N);
    int64_t across = (a->n + block_n - 1) / block_n, down = (a->m + BLOCK_M - 1) / BLOCK_M;
    int64_t row_bytes = a->ldx * dtype_bytes((int)a->xtype);
    float *wide = a->xtype == xtype ? NULL : lane_scratch(lane, (size_t)(TILE_M * a->k * 4));
    for (int64_t item; (item = lane_claim(lane)) < across * down;) {
        int64_t n = item % across * block_n, count = least(block_n, a->n - n);
        int64_t end = least(a->m, (item / across + 1) * BLOCK_M);
        for (int64_t m = item / across * BLOCK_M; m < end; m += TILE_M) {
            int64_t rows = least(TILE_M, end - m);
            for (int i = 0; wide && i < rows; i++)
                convert(wide + i * a->k, a->x + (m + i) * row_bytes, (int)a->xtype, a->k);
            rows_of(a, wtype, xtype, rows, wide ? (const char *)wide : a->x + m * row_bytes, wide ? a->k : a->ldx, m, n, count);
        }
    }
}

static void linear(struct lane *lane, const void *args) {
    const struct linear *a = args;
#if defined(__AVX512BF16__)
    if (a->wtype == BF16 && a->xtype == BF16) {
        linear_of(lane, a, BF16, BF16);
        return;
    }
#endif
    switch (a->wtype) {
    case F32: linear_of(lane, a, F32, F32); break;
    case BF16: linear_of(lane, a, BF16, F32); break;
    default: linear_of(lane, a, F16, F32); break;
    }
}
