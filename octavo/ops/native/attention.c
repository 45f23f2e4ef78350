/* Attention over paged memory in one pass (Milakov and Gimelshein 2018; Dao et al. 2022): scores of a tile of queries with a tile of keys,
 * an exponential rescaled as the maximum grows, and the weighted sum of values, all in float32 and in the nearest caches.
 *
 * A row is one query head of one token; the rows that share a kv head go together, so K and V are read once for all of them. Few long
 * sequences are cut along their context as well, and the parts joined at the end, so that every lane has work. */
#include "amx.h"
#include "kv_format.h"
#include "team.h"

#define ROWS 48 /* of a tile, a multiple of 16 */
#define KEYS 64 /* tokens of context a tile */
#define LEAST_SPLIT 128

struct attention {
    const char *q; /* [tokens, heads, head_dim] */
    const char *kv;
    char *out; /* [tokens, heads, head_dim] */
    const int32_t *table, *starts, *lengths, *rows;
    const float *sinks; /* [heads]: a score of each head that has no value and takes its part of the weight; or none */
    int64_t num_slices, tokens, heads, kv_heads, head_dim, block_tokens;
    int64_t ld_q, ld_table, kv_block, kv_which, kv_token, kv_head; /* elements */
    int64_t type, kv_type, window, whole;                          /* window 0: all; whole: contexts are not cut */
    struct scales scales;
    double scale, softcap;                                         /* softcap 0: none */
};

/* One piece of work: rows [row, row + rows) of a slice and kv head against the keys [begin, end). */
struct piece {
    int64_t slice, head, row, rows, begin, end, part;
};

/* What a lane keeps while it works on a piece. */
struct tile_memory {
    float *q, *rows, *keys, *scores, *out; /* [ROWS, D] [KEYS, D]: K, then V [D, KEYS]: K again [ROWS, KEYS] [ROWS, D] */
    float most[ROWS], total[ROWS];
};

INLINE int64_t group(const struct attention *a) { return a->heads / a->kv_heads; }

INLINE int64_t slice_rows(const struct attention *a, int64_t s) {
    return a->lengths[s] > 0 ? (a->starts[s + 1] - a->starts[s]) * group(a) : 0;
}

/* Position in its sequence of the token that row `row` of slice s belongs to. */
INLINE int64_t position(const struct attention *a, int64_t s, int64_t row) {
    return a->lengths[s] - (a->starts[s + 1] - a->starts[s]) + row / group(a);
}

INLINE int64_t oldest_seen(const struct attention *a, int64_t at) { return a->window && at >= a->window ? at - a->window + 1 : 0; }

/* K (which 0) or V (1) of token `from` and those after it in its block, before `end`: where the first lies, and how many. */
INLINE const char *stretch_at(const struct attention *a, const struct piece *p, int which, int64_t from, int64_t end, int64_t *count) {
    int64_t index = from / a->block_tokens, offset = from - index * a->block_tokens, left = a->block_tokens - offset;
    int64_t block = a->table[a->rows[p->slice] * a->ld_table + index];
    *count = left < end - from ? left : end - from;
    return a->kv + (block * a->kv_block + which * a->kv_which + offset * a->kv_token + p->head * a->kv_head) * dtype_bytes((int)a->kv_type);
}

/* Asks for the K or V of tokens [from, end), at most KEYS, ahead of time: rows of a few lines in scattered blocks are nothing that the
 * machine's own prefetcher could foresee. */
static void fetch(const struct attention *a, const struct piece *p, int which, int64_t from, int64_t end) {
    int64_t bytes = dtype_bytes((int)a->kv_type), count;
    end = end - from < KEYS ? end : from + KEYS;
    for (; from < end; from += count) {
        const char *row = stretch_at(a, p, which, from, end, &count);
        for (int64_t j = 0; j < count; j++, row += a->kv_token * bytes)
            for (int64_t line = 0; line < a->head_dim * bytes; line += 64)
                __builtin_prefetch(row + line);
    }
}

/* K or V of tokens [from, end), of which a byte holds each value, as float rows. */
static void gather_compressed(const struct attention *a, const struct piece *p, int which, int64_t from, int64_t end, float *to) {
    const int32_t *table = a->table + a->rows[p->slice] * a->ld_table;
    for (int64_t count; from < end; from += count) {
        const char *row = stretch_at(a, p, which, from, end, &count);
        const char *scale = scale_at(&a->scales, table[from / a->block_tokens], which, from % a->block_tokens, p->head);
        for (int64_t j = 0; j < count; j++, to += a->head_dim, row += a->kv_token)
            restore(to, row, (int)a->kv_type, a->scales.at ? get(scale, j * a->scales.token, (int)a->scales.type) : 1, a->head_dim);
    }
}

/* K or V of tokens [from, end) as float rows. */
static void gather(const struct attention *a, const struct piece *p, int which, int64_t from, int64_t end, float *to) {
    if (is_compressed(a->kv_type)) {
        gather_compressed(a, p, which, from, end, to);
        return;
    }
    for (int64_t count; from < end; from += count) {
        const char *row = stretch_at(a, p, which, from, end, &count);
        for (int64_t j = 0; j < count; j++, to += a->head_dim, row += a->kv_token * dtype_bytes((int)a->kv_type)) {
            if (a->kv_type == BF16)
                convert_of(to, row, BF16, a->head_dim);
            else if (a->kv_type == F32)
                convert_of(to, row, F32, a->head_dim);
            else
                convert_of(to, row, F16, a->head_dim);
        }
    }
}

/* rows [KEYS, dim] to columns [dim, KEYS], up to `count` rounded up to a whole tile of columns; what lies past `count` is never looked at. */
static void turn_keys(const float *rows, int64_t count, int64_t dim, float *columns) {
    for (int64_t j = 0; j < count; j += 4) {
        int64_t i = 0;
        for (; i + 4 <= dim; i += 4)
            turn4(rows + j * dim + i, dim, columns + i * KEYS + j, KEYS);
        for (; i < dim; i++)
            for (int64_t r = j; r < j + 4; r++)
                columns[i * KEYS + r] = rows[r * dim + i];
    }
}

/* out[row] += a[row] . b for M rows: a [M, count], b [count, columns], both by float32; columns a multiple of 4 or any small rest. */
INLINE void multiply_rows(int M, const float *a, int64_t lda, const float *b, int64_t ldb, int64_t count, int64_t columns, float *out, int64_t ldo) {
    int64_t c = 0;
    for (; c + 2 * LANES <= columns; c += 2 * LANES) {
        vf acc[TILE_M][2];
#pragma GCC unroll 8
        for (int m = 0; m < M; m++)
            for (int v = 0; v < 2; v++)
                acc[m][v] = load(out, m * ldo + c + v * LANES, F32);
        for (int64_t j = 0; j < count; j++) {
            vf left = load(b, j * ldb + c, F32), right = load(b, j * ldb + c + LANES, F32);
            KEEP(left);
            KEEP(right);
#pragma GCC unroll 8
            for (int m = 0; m < M; m++) {
                vf one = splat(a[m * lda + j]);
                KEEP(one);
                acc[m][0] += one * left;
                acc[m][1] += one * right;
            }
        }
#pragma GCC unroll 8
        for (int m = 0; m < M; m++)
            for (int v = 0; v < 2; v++)
                store(out, m * ldo + c + v * LANES, F32, acc[m][v]);
    }
    for (; c < columns; c++)
        for (int m = 0; m < M; m++)
            for (int64_t j = 0; j < count; j++)
                out[m * ldo + c] += a[m * lda + j] * b[j * ldb + c];
}

/* The same for any even number of rows. */
static void multiply_all(int64_t rows, const float *a, int64_t lda, const float *b, int64_t ldb, int64_t count, int64_t columns, float *out, int64_t ldo) {
    for (; TILE_M >= 6 && rows >= 6; rows -= 6, a += 6 * lda, out += 6 * ldo)
        multiply_rows(6, a, lda, b, ldb, count, columns, out, ldo);
    for (; TILE_M >= 4 && rows >= 4; rows -= 4, a += 4 * lda, out += 4 * ldo)
        multiply_rows(4, a, lda, b, ldb, count, columns, out, ldo);
    for (; rows > 0; rows -= 2, a += 2 * lda, out += 2 * ldo)
        multiply_rows(2, a, lda, b, ldb, count, columns, out, ldo);
}

/* Turns the scores of one row, times `scale`, whose keys [begin, end) of the tile are visible, into weights; keeps its maximum and total. */
INLINE void soften(const struct attention *a, struct tile_memory *t, int64_t r, int64_t begin, int64_t end, int64_t columns, float scale) {
    float *s = t->scores + r * KEYS, *out = t->out + r * a->head_dim;
    vf highest = splat(-INFINITY), total = {0};
    float cap = (float)a->softcap;
    for (int64_t j = 0; j < columns; j += LANES) {
        vf x = load(s, j, F32) * scale;
        if (cap > 0)
            x = cap * vtanh(x / cap);
        vi index = (vi)LANE_INDEX + (int32_t)j;
        x = choose((index >= (int32_t)begin) & (index < (int32_t)end), x, splat(-INFINITY));
        highest = vmax(highest, x);
        store(s, j, F32, x);
    }
    float most = vmax_of(highest);
    most = most > t->most[r] ? most : t->most[r];
    if (most == -INFINITY) { /* nothing visible so far: all weights are 0 */
        memset(s, 0, (size_t)columns * sizeof *s);
        return;
    }
    for (int64_t j = 0; j < columns; j += LANES) {
        vf x = vexp(load(s, j, F32) - most);
        total += x;
        store(s, j, F32, x);
    }
    float keep = expf(t->most[r] - most);
    t->most[r] = most;
    t->total[r] = t->total[r] * keep + sum(total);
    if (keep != 1)
        multiply(out, keep, a->head_dim);
}

/* What attend does for few rows: K and V are used where they lie, since to turn and copy them would cost more than the products; but those of a
 * byte a value are widened first. */

#define FEW 8 /* rows at most */
#if LANES == 16 || defined(__aarch64__)
#define SCORE_ROWS 4 /* rows whose sums with four keys fit the registers */
#define VALUE_VECTORS 4
#else
#define SCORE_ROWS 2
#define VALUE_VECTORS 2
#endif

/* Where K or V of each of the tokens [from, from + count), at most KEYS, begins; the type in which they lie there. */
static int find_tokens(const struct attention *a, const struct piece *p, int which, int64_t from, int64_t count, const char **at, float *rows) {
    if (is_compressed(a->kv_type)) {
        gather(a, p, which, from, from + count, rows);
        for (int64_t j = 0; j < count; j++)
            at[j] = (const char *)(rows + j * a->head_dim);
        return F32;
    }
    int64_t step = a->kv_token * dtype_bytes((int)a->kv_type);
    for (int64_t done = 0, some; done < count; done += some) {
        const char *row = stretch_at(a, p, which, from + done, from + count, &some);
        for (int64_t j = 0; j < some; j++)
            at[done + j] = row + j * step;
    }
    return (int)a->kv_type;
}

/* Scores of R rows of q with the keys at `at`: four keys at once, whose sums are added up together. */
INLINE void score_rows(int R, int type, const float *q, int64_t dim, const char *const *at, int64_t count, float *scores) {
    for (int64_t j = 0; j < count; j += 4) {
        const char *keys[4];
        vf acc[SCORE_ROWS][4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            keys[i] = at[j + i < count ? j + i : count - 1];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
                acc[r][i] = (vf){0};
        for (int64_t c = 0; c < dim; c += LANES) {
            vf ks[4];
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                ks[i] = load(keys[i], c, type);
                KEEP(ks[i]);
            }
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                vf one = load(q, r * dim + c, F32);
                KEEP(one);
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++)
                    acc[r][i] += one * ks[i];
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            v4 four = sums4(quarter(acc[r][0]), quarter(acc[r][1]), quarter(acc[r][2]), quarter(acc[r][3]));
            memcpy(scores + r * KEYS + j, &four, sizeof four);
        }
    }
}

/* out += weights . values in V vectors of columns from c on, for R rows. */
INLINE void add_values(int R, int V, int type, const float *weights, const char *const *at, int64_t count, int64_t c, float *out, int64_t dim) {
    vf acc[SCORE_ROWS][VALUE_VECTORS];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++)
            acc[r][v] = load(out, r * dim + c + v * LANES, F32);
    for (int64_t j = 0; j < count; j++) {
        vf values[VALUE_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) {
            values[v] = load(at[j], c + v * LANES, type);
            KEEP(values[v]);
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            vf one = splat(weights[r * KEYS + j]);
            KEEP(one);
#pragma GCC unroll 4
            for (int v = 0; v < V; v++)
                acc[r][v] += one * values[v];
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++)
            store(out, r * dim + c + v * LANES, F32, acc[r][v]);
}

INLINE void value_rows(int R, int type, const float *weights, const char *const *at, int64_t count, float *out, int64_t dim) {
    int64_t c = 0;
    for (; c + VALUE_VECTORS * LANES <= dim; c += VALUE_VECTORS * LANES)
        add_values(R, VALUE_VECTORS, type, weights, at, count, c, out, dim);
    for (; c < dim; c += LANES)
        add_values(R, 1, type, weights, at, count, c, out, dim);
}

/* Both of the above for any number of rows. */
INLINE void use_keys(int type, int64_t rows, struct tile_memory *t, int64_t dim, const char *const *at, int64_t count) {
    int64_t r = 0;
    for (; r + SCORE_ROWS <= rows; r += SCORE_ROWS)
        score_rows(SCORE_ROWS, type, t->q + r * dim, dim, at, count, t->scores + r * KEYS);
    if (SCORE_ROWS > 3 && rows - r == 3)
        score_rows(3, type, t->q + r * dim, dim, at, count, t->scores + r * KEYS);
    else if (SCORE_ROWS > 2 && rows - r == 2)
        score_rows(2, type, t->q + r * dim, dim, at, count, t->scores + r * KEYS);
    else if (rows - r == 1)
        score_rows(1, type, t->q + r * dim, dim, at, count, t->scores + r * KEYS);
}

INLINE void use_values(int type, int64_t rows, struct tile_memory *t, int64_t dim, const char *const *at, int64_t count) {
    int64_t r = 0;
    for (; r + SCORE_ROWS <= rows; r += SCORE_ROWS)
        value_rows(SCORE_ROWS, type, t->scores + r * KEYS, at, count, t->out + r * dim, dim);
    if (SCORE_ROWS > 3 && rows - r == 3)
        value_rows(3, type, t->scores + r * KEYS, at, count, t->out + r * dim, dim);
    else if (SCORE_ROWS > 2 && rows - r == 2)
        value_rows(2, type, t->scores + r * KEYS, at, count, t->out + r * dim, dim);
    else if (rows - r == 1)
        value_rows(1, type, t->scores + r * KEYS, at, count, t->out + r * dim, dim);
}

/* The visible keys of row r in the tile [from, from + count). */
INLINE void soften_row(const struct attention *a, const struct piece *p, struct tile_memory *t, int64_t r, int64_t from, int64_t count, int64_t columns,
                       float scale) {
    int64_t at = position(a, p->slice, p->row + r), begin = oldest_seen(a, at) - from, end = at + 1 - from;
    soften(a, t, r, begin < 0 ? 0 : begin, end < count ? end : count, columns, scale);
}

/* Where the query of row `row` of a piece begins. */
INLINE const char *query_at(const struct attention *a, const struct piece *p, int64_t r) {
    int64_t row = p->row + r, token = a->starts[p->slice] + row / group(a), head = p->head * group(a) + row % group(a);
    return a->q + (token * a->ld_q + head * a->head_dim) * dtype_bytes((int)a->type);
}

#if HAS_TILES
/* Both products by AMX's tiles, for rows that are many and bf16 throughout: weights are rounded to bf16, too. */

static void shape_attention(void) {
    struct tile_shapes shapes = {.palette = 1};
    for (int t = 0; t < 8; t++)
        shapes.rows[t] = 16, shapes.row_bytes[t] = 64;
    tiles_begin(&shapes);
}

/* out [rows, columns] += a [rows, count] . b, where b [count / 2, columns] holds the numbers of two rows in each of its 32-bit elements; rows are
 * a multiple of 16, count and columns of 32. */
static void multiply_tiles(int64_t rows, const char *a, int64_t a_step, const float *b, int64_t ldb, int64_t count, int64_t columns, float *out, int64_t ldo) {
    for (int64_t r = 0; r < rows; r += 16)
        for (int64_t c = 0; c < columns; c += 32) {
            float *to = out + r * ldo + c;
            TILE_LOAD(0, to, ldo * 4);
            TILE_LOAD(1, to + 16, ldo * 4);
            for (int64_t i = 0; i < count; i += 32) {
                const float *from = b + i / 2 * ldb + c;
                TILE_LOAD(4, a + r * a_step + i * 2, a_step);
                TILE_LOAD(5, from, ldb * 4);
                TILE_ADD_BF16(0, 4, 5);
                TILE_LOAD(6, from + 16, ldb * 4);
                TILE_ADD_BF16(1, 4, 6);
            }
            TILE_STORE(0, to, ldo * 4);
            TILE_STORE(1, to + 16, ldo * 4);
        }
}

/* K or V of tokens [from, from + count) as they are, and zeros up to `columns` of them. */
static void copy_tokens(const struct attention *a, const struct piece *p, int which, int64_t from, int64_t count, int64_t columns, char *to) {
    int64_t bytes = a->head_dim * 2;
    memset(to + count * bytes, 0, (size_t)((columns - count) * bytes));
    for (int64_t end = from + count, some; from < end; from += some) {
        const char *row = stretch_at(a, p, which, from, end, &some);
        for (int64_t j = 0; j < some; j++, to += bytes, row += a->kv_token * 2)
            memcpy(to, row, (size_t)bytes);
    }
}

/* Rows [columns, dim] of bf16 to [columns / 2, dim] of two rows' numbers side by side. */
static void pair_rows(const char *rows, int64_t columns, int64_t dim, float *pairs) {
    for (int64_t i = 0; i < columns / 2 * dim; i += LANES) {
        int64_t row = i / dim * 2, column = i % dim;
        vh first, second;
        memcpy(&first, rows + (row * dim + column) * 2, sizeof first);
        memcpy(&second, rows + ((row + 1) * dim + column) * 2, sizeof second);
        vu both = widen(first) | widen(second) << 16;
        memcpy(pairs + i, &both, sizeof both);
    }
}

static void attend_tiles(const struct attention *a, const struct piece *p, struct tile_memory *t, int64_t padded) {
    int64_t dim = a->head_dim;
    char *q = (char *)t->q, *rows = (char *)t->rows, *weights = (char *)t->scores;
    shape_attention();
    for (int64_t r = 0; r < p->rows; r++)
        memcpy(q + r * dim * 2, query_at(a, p, r), (size_t)dim * 2);
    memset(q + p->rows * dim * 2, 0, (size_t)((padded - p->rows) * dim * 2));
    for (int64_t from = p->begin; from < p->end; from += KEYS) {
        int64_t count = p->end - from < KEYS ? p->end - from : KEYS, columns = (count + 31) / 32 * 32;
        fetch(a, p, 1, from, p->end);
        copy_tokens(a, p, 0, from, count, columns, rows);
        turn_keys(t->rows, columns, dim / 2, t->keys);
        memset(t->scores, 0, (size_t)(padded * KEYS) * sizeof(float));
        multiply_tiles(padded, q, dim * 2, t->keys, KEYS, dim, columns, t->scores, KEYS);
        for (int64_t r = 0; r < padded; r++) { /* each row of weights over the beginning of its scores */
            if (r < p->rows)
                soften_row(a, p, t, r, from, count, columns, (float)a->scale);
            narrow_of(weights + r * KEYS * 4, BF16, t->scores + r * KEYS, columns);
        }
        fetch(a, p, 0, from + KEYS, p->end);
        copy_tokens(a, p, 1, from, count, columns, rows);
        pair_rows(rows, columns, dim, t->keys);
        multiply_tiles(padded, weights, KEYS * 4, t->keys, dim, columns, dim, t->out, dim);
    }
    tiles_end();
}

/* Few rows: keys are the rows of a tile as they lie, at most 16 of a block, and the queries its columns, so that nothing is turned but the scores. */

INLINE int64_t few_columns(const struct piece *p) { return p->rows <= 4 ? 4 : 8; }

/* Tiles 0 to 3: scores of 16 keys each; 4: keys; 5: queries. */
static void begin_few(const struct attention *a, const struct piece *p, struct tile_memory *t) {
    int64_t columns = few_columns(p);
    struct tile_shapes shapes = {.palette = 1};
    for (int tile = 0; tile < 6; tile++)
        shapes.rows[tile] = 16, shapes.row_bytes[tile] = (uint16_t)(tile == 4 ? 64 : columns * 4);
    tiles_begin(&shapes);
    memset(t->q, 0, (size_t)(a->head_dim / 2 * columns) * 4);
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t i = 0; i < a->head_dim / 2; i++)
            memcpy(t->q + i * columns + r, query_at(a, p, r) + i * 4, 4);
}

/* Scores with the keys [from, from + count), from on the border of a block or 16 tokens further on in it. */
static void score_few(const struct attention *a, const struct piece *p, struct tile_memory *t, int64_t from, int64_t count) {
    int64_t columns = few_columns(p), step = a->kv_token * 2, some;
    const char *keys[KEYS / 16];
    for (int64_t j = 0; j < KEYS; j += 16) /* the last ones again where there are no more: nobody looks at their scores */
        keys[j / 16] = j < count ? stretch_at(a, p, 0, from + j, p->end, &some) : keys[j / 16 - 1];
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (int64_t i = 0; i < a->head_dim; i += 32) {
        TILE_LOAD(5, t->q + i / 2 * columns, columns * 4);
        TILE_LOAD(4, keys[0] + i * 2, step);
        TILE_ADD_BF16(0, 4, 5);
        TILE_LOAD(4, keys[1] + i * 2, step);
        TILE_ADD_BF16(1, 4, 5);
        TILE_LOAD(4, keys[2] + i * 2, step);
        TILE_ADD_BF16(2, 4, 5);
        TILE_LOAD(4, keys[3] + i * 2, step);
        TILE_ADD_BF16(3, 4, 5);
    }
    TILE_STORE(0, t->keys, columns * 4);
    TILE_STORE(1, t->keys + 16 * columns, columns * 4);
    TILE_STORE(2, t->keys + 32 * columns, columns * 4);
    TILE_STORE(3, t->keys + 48 * columns, columns * 4);
    for (int64_t j = 0; j < count; j += 4)
        for (int64_t c = 0; c < columns; c += 4)
            turn4(t->keys + j * columns + c, columns, t->scores + c * KEYS + j, KEYS);
}

INLINE int takes_tiles(const struct attention *a, const struct piece *p) {
    return a->type == BF16 && a->kv_type == BF16 && a->head_dim % 32 == 0 && (p->rows > FEW || a->block_tokens % 16 == 0);
}
#else
#define takes_tiles(a, p) 0
#define attend_tiles(a, p, t, padded) (void)0
#define begin_few(a, p, t) (void)0
#define score_few(a, p, t, from, count) (void)0
#define tiles_end() (void)0
#endif

static void score_keys(const struct attention *a, const struct piece *p, struct tile_memory *t, int64_t from, int64_t count) {
    const char *at[KEYS];
    if (takes_tiles(a, p)) {
        score_few(a, p, t, from, count);
        return;
    }
    switch (find_tokens(a, p, 0, from, count, at, t->rows)) {
    case F32: use_keys(F32, p->rows, t, a->head_dim, at, count); break;
    case BF16: use_keys(BF16, p->rows, t, a->head_dim, at, count); break;
    default: use_keys(F16, p->rows, t, a->head_dim, at, count); break;
    }
}

static void attend_few(const struct attention *a, const struct piece *p, struct tile_memory *t) {
    const char *at[KEYS];
    int64_t dim = a->head_dim, tiled = takes_tiles(a, p);
    if (tiled)
        begin_few(a, p, t);
    for (int64_t from = tiled ? p->begin / 16 * 16 : p->begin; from < p->end; from += KEYS) {
        int64_t count = p->end - from < KEYS ? p->end - from : KEYS, columns = (count + LANES - 1) / LANES * LANES;
        fetch(a, p, 1, from, p->end);
        score_keys(a, p, t, from, count);
        for (int64_t r = 0; r < p->rows; r++)
            soften_row(a, p, t, r, from, count, columns, tiled ? (float)a->scale : 1);
        fetch(a, p, 0, from + KEYS, p->end);
        switch (find_tokens(a, p, 1, from, count, at, t->rows)) {
        case F32: use_values(F32, p->rows, t, dim, at, count); break;
        case BF16: use_values(BF16, p->rows, t, dim, at, count); break;
        default: use_values(F16, p->rows, t, dim, at, count); break;
        }
    }
    if (tiled)
        tiles_end();
}

static void attend(const struct attention *a, const struct piece *p, struct tile_memory *t) {
    int64_t dim = a->head_dim, tiled = takes_tiles(a, p), step = tiled && p->rows > FEW ? 16 : 2, padded = (p->rows + step - 1) / step * step;
    fetch(a, p, 0, p->begin, p->end);
    for (int64_t r = 0; r < p->rows; r++) {
        int64_t row = p->row + r;
        int sink = a->sinks && p->part == 0;
        t->most[r] = sink ? a->sinks[p->head * group(a) + row % group(a)] : -INFINITY;
        t->total[r] = sink;
    }
    memset(t->out, 0, (size_t)(padded * dim) * sizeof(float));
    if (tiled && p->rows > FEW) {
        attend_tiles(a, p, t, padded);
        return;
    }
    for (int64_t r = 0; r < p->rows && !tiled; r++) {
        convert(t->q + r * dim, query_at(a, p, r), (int)a->type, dim);
        multiply(t->q + r * dim, (float)a->scale, dim);
    }
    memset(t->q + p->rows * dim, 0, (size_t)((padded - p->rows) * dim) * sizeof(float));
    if (p->rows <= FEW && dim % LANES == 0) {
        attend_few(a, p, t);
        return;
    }
    for (int64_t from = p->begin; from < p->end; from += KEYS) {
        int64_t count = p->end - from < KEYS ? p->end - from : KEYS, columns = (count + 2 * LANES - 1) / (2 * LANES) * 2 * LANES;
        fetch(a, p, 1, from, p->end);
        gather(a, p, 0, from, from + count, t->rows);
        turn_keys(t->rows, count, dim, t->keys);
        memset(t->scores, 0, (size_t)(padded * KEYS) * sizeof(float));
        multiply_all(padded, t->q, dim, t->keys, KEYS, dim, columns, t->scores, KEYS);
        for (int64_t r = 0; r < p->rows; r++)
            soften_row(a, p, t, r, from, count, columns, 1);
        fetch(a, p, 0, from + KEYS, p->end);
        gather(a, p, 1, from, from + count, t->rows);
        multiply_all(padded, t->scores, KEYS, t->rows, dim, count, dim, t->out, dim);
    }
}

INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

INLINE int64_t tiles_of(const struct attention *a, int64_t s) { return ceil_div(slice_rows(a, s), ROWS); }

INLINE int64_t parts_of(const struct attention *a, int64_t s, int64_t split) {
    return split && a->lengths[s] > 0 ? ceil_div(a->lengths[s], split) : 1;
}

/* Contexts are cut only where there would be too few pieces, which is so when few tokens are decoded. */
static int64_t choose_split(const struct attention *a, int lanes) {
    int64_t pieces = 0, longest = 0;
    for (int64_t s = 0; s < a->num_slices; s++) {
        pieces += tiles_of(a, s) * a->kv_heads;
        longest = a->lengths[s] > longest ? a->lengths[s] : longest;
    }
    if (a->whole || lanes == 1 || pieces == 0 || pieces >= 4 * lanes || longest <= LEAST_SPLIT)
        return 0;
    int64_t parts = ceil_div(4 * lanes, pieces), split = ceil_div(ceil_div(longest, parts), KEYS) * KEYS;
    return split < LEAST_SPLIT ? LEAST_SPLIT : split;
}

static void put_row(const struct attention *a, int64_t s, int64_t head, int64_t row, float *from, float factor) {
    int64_t at = (a->starts[s] + row / group(a)) * a->heads + head * group(a) + row % group(a);
    multiply(from, factor, a->head_dim);
    narrow(a->out + at * a->head_dim * dtype_bytes((int)a->type), (int)a->type, from, a->head_dim);
}

/* Where contexts are cut: what prepare_attention leaves in the shared memory. */
struct joints {
    int64_t split; /* tokens of context a part; 0: contexts are whole, and there is nothing more */
    int32_t *finished; /* [slices, kv heads, tiles]: parts that are done; the lane that does the last one joins them */
    float *partials;   /* [slices, kv heads, tiles, parts, ROWS, dim + 2]: weighted sum, maximum and total of a row */
};

static void prepare_attention(struct lane *lane, const void *args) {
    const struct attention *a = args;
    int64_t split = choose_split(a, lane->count), tiles = 0, parts = 0;
    for (int64_t s = 0; split && s < a->num_slices; s++) {
        tiles += tiles_of(a, s) * a->kv_heads;
        parts += tiles_of(a, s) * a->kv_heads * parts_of(a, s, split);
    }
    size_t counters = (size_t)ceil_div(tiles * 4, 64) * 64, entry = (size_t)(ROWS * (a->head_dim + 2)) * sizeof(float);
    char *shared = lane_shared(lane, 64 + counters + (size_t)parts * entry);
    *(struct joints *)shared = (struct joints){split, (int32_t *)(shared + 64), (float *)(shared + 64 + counters)};
    memset(shared + 64, 0, counters);
}

/* Adds up the parts of a tile, each with its own maximum. */
static void join(const struct attention *a, const struct piece *p, const float *partials, int64_t parts, float *to) {
    int64_t dim = a->head_dim, entry = dim + 2;
    for (int64_t r = 0; r < p->rows; r++) {
        const float *from = partials + r * entry;
        float most = -INFINITY, total = 0;
        for (int64_t part = 0; part < parts; part++)
            most = from[part * ROWS * entry + dim] > most ? from[part * ROWS * entry + dim] : most;
        memset(to, 0, (size_t)dim * sizeof(float));
        for (int64_t part = 0; part < parts; part++) {
            const float *one = from + part * ROWS * entry;
            float weight = expf(one[dim] - most);
            total += weight * one[dim + 1];
            add_multiple(to, weight, one, dim);
        }
        put_row(a, p->slice, p->head, p->row + r, to, 1 / total);
    }
}

/* Zeros for tokens of no slice, or of a padding slice. */
static void clear_padding(const struct attention *a) {
    int64_t covered = 0, row_bytes = a->heads * a->head_dim * dtype_bytes((int)a->type);
    for (int64_t s = 0; s <= a->num_slices; s++) {
        int64_t begin = s == a->num_slices ? a->tokens : a->lengths[s] > 0 ? a->starts[s] : a->starts[s + 1];
        if (begin > covered)
            memset(a->out + covered * row_bytes, 0, (size_t)((begin - covered) * row_bytes));
        covered = s < a->num_slices && a->starts[s + 1] > covered ? a->starts[s + 1] : covered;
    }
}

static void attention(struct lane *lane, const void *args) {
    const struct attention *a = args;
    const struct joints *joints = lane_shared(lane, 0);
    int64_t dim = a->head_dim, entry = dim + 2, split = joints->split;
    struct tile_memory t;
    t.q = lane_scratch(lane, (size_t)((2 * ROWS + 2 * KEYS) * dim + ROWS * KEYS) * sizeof(float));
    t.out = t.q + ROWS * dim;
    t.rows = t.out + ROWS * dim;
    t.keys = t.rows + KEYS * dim;
    t.scores = t.keys + KEYS * dim;

    int64_t item = lane_claim(lane), first = 0, first_tile = 0; /* pieces and tiles of the slices before */
    if (item == 0)
        clear_padding(a);
    for (int64_t s = 0; s < a->num_slices; s++) {
        int64_t rows = slice_rows(a, s), tiles = tiles_of(a, s), parts = parts_of(a, s, split);
        for (; item < first + tiles * a->kv_heads * parts; item = lane_claim(lane)) {
            int64_t part = (item - first) % parts, tile_of_all = (item - first) / parts, tile = tiles - 1 - tile_of_all % tiles;
            struct piece p = {.slice = s, .head = tile_of_all / tiles, .row = tile * ROWS};
            p.rows = rows - p.row < ROWS ? rows - p.row : ROWS;
            p.part = part;
            p.begin = oldest_seen(a, position(a, s, p.row));
            p.end = position(a, s, p.row + p.rows - 1) + 1;
            if (!split) {
                attend(a, &p, &t);
                for (int64_t r = 0; r < p.rows; r++)
                    put_row(a, s, p.head, p.row + r, t.out + r * dim, t.total[r] == 0 ? 0 : 1 / t.total[r]);
                continue;
            }
            p.begin = part * split > p.begin ? part * split : p.begin;
            p.end = (part + 1) * split < p.end ? (part + 1) * split : p.end;
            attend(a, &p, &t);
            float *partials = joints->partials + (first + tile_of_all * parts) * ROWS * entry;
            for (int64_t r = 0; r < p.rows; r++) {
                float *to = partials + (part * ROWS + r) * entry;
                memcpy(to, t.out + r * dim, (size_t)dim * sizeof(float));
                to[dim] = t.most[r];
                to[dim + 1] = t.total[r];
            }
            if (__atomic_add_fetch(&joints->finished[first_tile + tile_of_all], 1, __ATOMIC_ACQ_REL) == parts)
                join(a, &p, partials, parts, t.out);
        }
        first += tiles * a->kv_heads * parts;
        first_tile += tiles * a->kv_heads;
    }
}
