/* AMX's tile registers: eight of up to 16 rows of 64 bytes, and products of whole tiles. A tile is named by a literal number.
 * C of 16 rows by 16 columns grows by A of 16 rows of 32 bf16 along k times B of k by 16 columns, where a row of B holds pairs along k of each
 * column. Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
 *
 * With EMULATE_AMX the same names are plain C, which refuses what the processor would: so the kernels are tested on any machine. */
#ifndef OCTAVO_AMX_H
#define OCTAVO_AMX_H

#include "simd.h"

struct tile_shapes { /* as LDTILECFG reads it */
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
#define HAS_TILES 1

/* Tells compilers so: of the memory that tiles are loaded from, the intrinsics say nothing. */
#define MEMORY_IS_READ() __asm__ volatile("" ::: "memory")

#define TILE_LOAD(tile, at, step)                                                                                                           \
    do {                                                                                                                                    \
        MEMORY_IS_READ();                                                                                                                   \
        _tile_loadd(tile, at, step);                                                                                                        \
    } while (0)
#define TILE_STORE(tile, at, step) _tile_stored(tile, at, step)
#define TILE_ZERO(tile) _tile_zero(tile)
#define TILE_ADD_BF16(c, a, b) _tile_dpbf16ps(c, a, b)

INLINE void tiles_begin(const struct tile_shapes *shapes) {
    MEMORY_IS_READ();
    _tile_loadconfig(shapes);
}

INLINE void tiles_end(void) { _tile_release(); }

#elif defined(EMULATE_AMX)
#define HAS_TILES 1

static __thread struct {
    struct tile_shapes shapes;
    uint8_t rows[8][16][64];
} emulated;

static void tiles_begin(const struct tile_shapes *shapes) {
    if (shapes->palette != 1 || shapes->start_row)
        __builtin_trap();
    for (int t = 0; t < 8; t++)
        if (shapes->rows[t] > 16 || shapes->row_bytes[t] > 64 || !shapes->rows[t] != !shapes->row_bytes[t])
            __builtin_trap();
    memset(&emulated, 0, sizeof emulated);
    emulated.shapes = *shapes;
}

static void tiles_end(void) { memset(&emulated, 0, sizeof emulated); }

static int tile_rows(int tile) {
    if (!emulated.shapes.rows[tile])
        __builtin_trap();
    return emulated.shapes.rows[tile];
}

static void TILE_ZERO(int tile) { memset(emulated.rows[tile], 0, (size_t)tile_rows(tile) * 64); }

static void TILE_LOAD(int tile, const void *at, int64_t step) {
    for (int r = 0; r < tile_rows(tile); r++)
        memcpy(emulated.rows[tile][r], (const char *)at + r * step, emulated.shapes.row_bytes[tile]);
}

static void TILE_STORE(int tile, void *at, int64_t step) {
    for (int r = 0; r < tile_rows(tile); r++)
        memcpy((char *)at + r * step, emulated.rows[tile][r], emulated.shapes.row_bytes[tile]);
}

/* Rows of a, quads of bytes along k, columns: where the shapes of the three fit one another. */
static void tile_sizes(int c, int a, int b, int *rows, int *quads, int *columns) {
    *rows = tile_rows(c), *quads = tile_rows(b), *columns = emulated.shapes.row_bytes[c] / 4;
    if (c == a || c == b || a == b || tile_rows(a) != *rows || emulated.shapes.row_bytes[a] != *quads * 4 || emulated.shapes.row_bytes[b] != *columns * 4)
        __builtin_trap();
}

static void TILE_ADD_BF16(int c, int a, int b) {
    int rows, quads, columns;
    float left[16][32], right[32][16];
    tile_sizes(c, a, b, &rows, &quads, &columns);
    for (int i = 0; i < 2 * quads; i++) {
        for (int r = 0; r < rows; r++)
            left[r][i] = get(emulated.rows[a][r], i, BF16);
        for (int n = 0; n < columns; n++)
            right[i][n] = get(emulated.rows[b][i / 2], 2 * n + i % 2, BF16);
    }
    for (int r = 0; r < rows; r++) {
        float sums[16];
        memcpy(sums, emulated.rows[c][r], sizeof sums);
        for (int i = 0; i < 2 * quads; i++)
            for (int n = 0; n < columns; n++)
                sums[n] += left[r][i] * right[i][n];
        memcpy(emulated.rows[c][r], sums, sizeof sums);
    }
}
#endif

#endif
