/* The product of linear.c with w laid out in panels: [n / 16, k / 2, 16, 2] bf16, or [n / 16, k, 16, 1] float32; n is a multiple of 16. One
 * load then feeds 16 outputs, there is nothing to add up across a vector at the end, and w streams by in the order of memory. */

#define WIDTH 16 /* outputs of a panel */
#define VECTORS (WIDTH / LANES)
#if LANES == 16
#define PANELS 4 /* side by side, where rows are many */
#else
#define PANELS 1
#endif
#define SUMS (PANELS > 2 ? PANELS : 2)

/* P panels, panel_bytes apart, by M rows of x (float32, or bf16 where the machine multiplies its pairs); either P or C is 1. With C = 2
 * every other step adds to sums of its own, for few rows: else each step would wait for the one before it. */
INLINE void panel_tile(int P, int C, int M, int wtype, int pairs, const char *w, int64_t panel_bytes, const char *x, int64_t ldx, int64_t k,
                       vf acc[SUMS][TILE_M][VECTORS]) {
#pragma GCC unroll 8
    for (int p = 0; p < P * C; p++)
#pragma GCC unroll 8
        for (int m = 0; m < M; m++)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++)
                acc[p][m][v] = (vf){0};
    const float *xs = (const float *)x;
    if (pairs) {
#if defined(__AVX512BF16__)
        for (int64_t i = 0; i < k; i += 2 * C) {
#pragma GCC unroll 2
            for (int c = 0; c < C; c++) {
                if (c && i + 2 * c >= k)
                    break;
                __m512bh ones[TILE_M];
#pragma GCC unroll 8
                for (int m = 0; m < M; m++) {
                    int32_t two;
                    memcpy(&two, x + (m * ldx + i + 2 * c) * 2, 4);
                    ones[m] = (__m512bh)_mm512_set1_epi32(two);
                }
#pragma GCC unroll 8
                for (int p = 0; p < P; p++) {
                    __m512bh ws = (__m512bh)_mm512_loadu_si512(w + p * panel_bytes + (i + 2 * c) * WIDTH * 2);
#pragma GCC unroll 8
                    for (int m = 0; m < M; m++)
                        acc[p + c][m][0] = (vf)_mm512_dpbf16_ps((__m512)acc[p + c][m][0], ws, ones[m]);
                }
            }
        }
#endif
    } else if (wtype == F32) {
        for (int64_t i = 0; i < k; i += C)
#pragma GCC unroll 2
            for (int c = 0; c < C; c++) {
                if (c && i + c >= k)
                    break;
#pragma GCC unroll 8
                for (int p = 0; p < P; p++) {
                    vf ws[VECTORS];
#pragma GCC unroll 8
                    for (int v = 0; v < VECTORS; v++) {
                        ws[v] = load(w + p * panel_bytes, (i + c) * WIDTH + v * LANES, F32);
                        KEEP(ws[v]);
                    }
#pragma GCC unroll 8
                    for (int m = 0; m < M; m++) {
                        vf one = splat(xs[m * ldx + i + c]);
                        KEEP(one);
#pragma GCC unroll 8
                        for (int v = 0; v < VECTORS; v++)
                            acc[p + c][m][v] += ws[v] * one;
                    }
                }
            }
    } else {
        for (int64_t i = 0; i < k; i += 2)
#pragma GCC unroll 2
            for (int odd = 0; odd < 2; odd++) /* one after the other: both at once need more registers than there are */
#pragma GCC unroll 8
                for (int p = 0; p < P; p++) {
                    vf ws[VECTORS];
#pragma GCC unroll 8
                    for (int v = 0; v < VECTORS; v++) {
                        vu both;
                        memcpy(&both, w + p * panel_bytes + (i * WIDTH + v * 2 * LANES) * 2, sizeof both);
                        ws[v] = (vf)(odd ? both & 0xffff0000u : both << 16);
                        KEEP(ws[v]);
                    }
#pragma GCC unroll 8
                    for (int m = 0; m < M; m++) {
                        vf one = splat(xs[m * ldx + i + odd]);
                        KEEP(one);
#pragma GCC unroll 8
                        for (int v = 0; v < VECTORS; v++)
                            acc[C == 2 ? odd : p][m][v] += ws[v] * one;
                    }
                }
    }
#pragma GCC unroll 8
    for (int m = 0; C == 2 && m < M; m++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++)
            acc[0][m][v] += acc[1][m][v];
}

static __attribute__((noinline)) void put_outputs(const struct linear *a, int64_t m, int64_t n, const vf *y) {
    for (int v = 0; v < VECTORS; v++) {
        int64_t at = n + v * LANES;
        vf sum = a->bias ? y[v] + load_any(a->bias, at, (int)a->btype) : y[v];
        sum *= (float)a->scale;
        if (a->residual)
            sum += load_any(a->residual, m * a->ldr + at, (int)a->otype);
        store_any(a->out, m * a->ldo + at, (int)a->otype, sum);
    }
}

/* M rows of x from row m of out on, against `count` panels from `panel` on. */
INLINE void panel_rows(const struct linear *a, int wtype, int pairs, int M, const char *x, int64_t ldx, int64_t m, int64_t panel,
                       int64_t count) {
    const int most = M <= 2 ? 1 : PANELS, C = M <= 2 ? 2 : 1;
    int64_t panel_bytes = WIDTH * a->k * dtype_bytes(wtype);
    for (int64_t end = panel + count; panel < end;) {
        vf acc[SUMS][TILE_M][VECTORS];
        const char *w = a->w + panel * panel_bytes;
        int P = end - panel >= most ? most : 1;
        if (P == most)
            panel_tile(most, C, M, wtype, pairs, w, panel_bytes, x, ldx, a->k, acc);
        else
            panel_tile(1, C, M, wtype, pairs, w, panel_bytes, x, ldx, a->k, acc);
#pragma GCC unroll 8
        for (int p = 0; p < most; p++)
#pragma GCC unroll 8
            for (int r = 0; r < M && p < P; r++)
                put_outputs(a, m + r, (panel + p) * WIDTH, acc[p][r]);
        panel += P;
    }
}

INLINE void panel_block(const struct linear *a, int wtype, int pairs, int64_t rows, const char *x, int64_t ldx, int64_t m, int64_t panel,
                        int64_t count) {
    int64_t row_bytes = ldx * (pairs ? 2 : 4);
    for (; TILE_M >= 6 && rows >= 6; rows -= 6, m += 6, x += 6 * row_bytes)
        panel_rows(a, wtype, pairs, 6, x, ldx, m, panel, count);
    for (; TILE_M >= 4 && rows >= 4; rows -= 4, m += 4, x += 4 * row_bytes)
        panel_rows(a, wtype, pairs, 4, x, ldx, m, panel, count);
    for (; rows >= 2; rows -= 2, m += 2, x += 2 * row_bytes)
        panel_rows(a, wtype, pairs, 2, x, ldx, m, panel, count);
    if (rows)
        panel_rows(a, wtype, pairs, 1, x, ldx, m, panel, count);
}

/* Pieces of work: as many panels as keep every lane busy, by BLOCK_M rows of x, which the lane converts once for all of them. */
INLINE void panels_of(struct lane *lane, const struct linear *a, int wtype, int pairs) {
    int64_t total = a->n / WIDTH, down = (a->m + BLOCK_M - 1) / BLOCK_M, bytes = dtype_bytes((int)a->xtype);
    int64_t block = (total + 4 * lane->count - 1) / (4 * lane->count), converted = -1;
    block = block < PANELS ? PANELS : block;
    int64_t across = (total + block - 1) / block;
    float *wide = pairs || a->xtype == F32 ? NULL : lane_scratch(lane, (size_t)(least(a->m, BLOCK_M) * a->k) * sizeof(float));
    for (int64_t item; (item = lane_claim(lane)) < across * down;) {
        int64_t panel = item % across * block, m = item / across * BLOCK_M, rows = least(BLOCK_M, a->m - m);
        const char *x = a->x + m * a->ldx * bytes;
        for (int64_t r = 0; wide && converted != m && r < rows; r++)
            convert(wide + r * a->k, x + r * a->ldx * bytes, (int)a->xtype, a->k);
        converted = m;
        panel_block(a, wtype, pairs, rows, wide ? (const char *)wide : x, wide ? a->k : a->ldx, m, panel, least(block, total - panel));
    }
}

static void panels(struct lane *lane, const void *args) {
    const struct linear *a = args;
    if (a->wtype == F32) {
        panels_of(lane, a, F32, 0);
        return;
    }
#if defined(__AVX512BF16__)
    if (a->xtype == BF16) {
        panels_of(lane, a, BF16, 1);
        return;
    }
#endif
    panels_of(lane, a, BF16, 0);
}

/* That layout out of rows, in the same memory: each panel's 16 rows of 4-byte words, bf16 pairs or float32, become as many columns. */
struct pack_panels {
    uint32_t *w;
    int64_t panels, words; /* words: of a row */
};

static void pack_panels(struct lane *lane, const void *args) {
    const struct pack_panels *a = args;
    int64_t size = WIDTH * a->words, whole = a->words / 4 * 4;
    float *rows = lane_scratch(lane, (size_t)size * 4);
    for (int64_t panel; (panel = lane_claim(lane)) < a->panels;) {
        float *to = (float *)(a->w + panel * size);
        memcpy(rows, to, (size_t)size * 4);
        for (int64_t i = 0; i < whole; i += 4)
            for (int n = 0; n < WIDTH; n += 4)
                turn4(rows + n * a->words + i, a->words, to + i * WIDTH + n, WIDTH);
        for (int64_t i = whole; i < a->words; i++)
            for (int n = 0; n < WIDTH; n++)
                memcpy(to + i * WIDTH + n, rows + n * a->words + i, 4);
    }
}
