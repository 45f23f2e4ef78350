/* What lies between the products: norms, gates, rotation and writing K and V, and the greedy choice. Each works on whole rows. */
#include "kv_format.h"
#include "simd.h"
#include "team.h"

/* A stretch [begin, end) of n rows to work on: false when none is left. Long enough to be worth the asking. */
struct stretch {
    int64_t begin, end;
};

INLINE int claim_rows(struct lane *lane, int64_t n, struct stretch *rows) {
    int64_t step = (n + 4 * lane->count - 1) / (4 * lane->count);
    rows->begin = lane_claim(lane) * step;
    rows->end = rows->begin + step < n ? rows->begin + step : n;
    return rows->begin < n;
}

/* 1 / sqrt(mean of squares + eps) of n floats. */
INLINE float inverse_rms(const float *x, int64_t n, float eps) {
    vf squares = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vf v = load(x, i, F32);
        squares += v * v;
    }
    float total = sum(squares);
    for (; i < n; i++)
        total += x[i] * x[i];
    return 1.0f / sqrtf(total / (float)n + eps);
}

INLINE void scale_by(float *x, int64_t n, float factor, const float *weight) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        store(x, i, F32, load(x, i, F32) * factor * load(weight, i, F32));
    for (; i < n; i++)
        x[i] *= factor * weight[i];
}

struct rms_norm {
    const char *x, *residual; /* residual may be null: then the norm of x, else of residual + scale * x */
    const float *weight;
    char *out, *sum; /* sum: the new residual, as it is rounded there; may be the old one */
    int64_t rows, n, ldx, ldr, type;
    double eps, scale;
};

static void norm_row(const struct rms_norm *a, int64_t r, float *row, float *old) {
    int type = (int)a->type;
    int64_t n = a->n, bytes = dtype_bytes(type);
    convert(row, a->x + r * a->ldx * bytes, type, n);
    if (a->residual) {
        convert(old, a->residual + r * a->ldr * bytes, type, n);
        add_multiple(old, (float)a->scale, row, n);
        narrow(a->sum + r * n * bytes, type, old, n);
        convert(row, a->sum + r * n * bytes, type, n);
    }
    scale_by(row, n, inverse_rms(row, n, (float)a->eps), a->weight);
    narrow(a->out + r * n * bytes, type, row, n);
}

static void rms_norm(struct lane *lane, const void *args) {
    const struct rms_norm *a = args;
    float *row = lane_scratch(lane, (size_t)(2 * a->n * 4));
    for (struct stretch s; claim_rows(lane, a->rows, &s);)
        for (int64_t r = s.begin; r < s.end; r++)
            norm_row(a, r, row, row + a->n);
}

struct gate {
    const char *x; /* [rows, 2 n]: gates, then what they multiply */
    char *out;     /* [rows, n] */
    int64_t rows, n, ldx, type, gelu;
};

INLINE vf silu(vf x) { return x / (1.0f + vexp(-x)); }

INLINE vf gelu_tanh(vf x) { return 0.5f * x * (1.0f + vtanh(0.7978845608028654f * (x + 0.044715f * x * x * x))); }

/* Columns [begin, end) of the row at x. */
INLINE void gate_row(const struct gate *a, int type, const char *x, char *out, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += LANES) {
        int64_t count = end - i;
        vf g = count >= LANES ? load(x, i, type) : load_part(x, i, type, count);
        vf up = count >= LANES ? load(x, a->n + i, type) : load_part(x, a->n + i, type, count);
        vf y = (a->gelu ? gelu_tanh(g) : silu(g)) * up;
        if (count >= LANES)
            store(out, i, type, y);
        else
            store_part(out, i, type, y, count);
    }
}

#define GATE_COLUMNS 256 /* of a piece of work */

static void gate(struct lane *lane, const void *args) {
    const struct gate *a = args;
    int type = (int)a->type;
    int64_t n = a->n, bytes = dtype_bytes(type), across = (n + GATE_COLUMNS - 1) / GATE_COLUMNS;
    for (struct stretch s; claim_rows(lane, a->rows * across, &s);)
        for (int64_t item = s.begin; item < s.end; item++) {
            int64_t r = item / across, begin = item % across * GATE_COLUMNS, end = begin + GATE_COLUMNS < n ? begin + GATE_COLUMNS : n;
            const char *x = a->x + r * a->ldx * bytes;
            char *out = a->out + r * n * bytes;
            if (type == BF16)
                gate_row(a, BF16, x, out, begin, end);
            else if (type == F32)
                gate_row(a, F32, x, out, begin, end);
            else
                gate_row(a, F16, x, out, begin, end);
        }
}

struct rope_and_write {
    const char *qkv; /* [tokens, (heads + 2 kv_heads) head_dim] */
    char *q;         /* [tokens, heads, head_dim] */
    char *kv;        /* element (block, k or v, offset, head, 0) lies at the strides below */
    const int64_t *positions, *slots;
    const float *cos_sin; /* [.., rotated]: cosines, then sines; null: no rotation */
    const float *q_norm, *k_norm; /* null: no norm */
    int64_t tokens, heads, kv_heads, head_dim, rotated, block_tokens;
    int64_t ld_qkv, kv_block, kv_which, kv_token, kv_head; /* elements */
    int64_t q_norm_n, k_norm_n;                           /* over one head or over all together */
    int64_t type, kv_type;
    struct scales scales; /* of int8 they are written, too */
    double eps;
};

/* Pairs (i, i + half) turned by their angles. */
INLINE void rotate(float *x, const float *cos_sin, int64_t half) {
    const float *sines = cos_sin + half;
    int64_t i = 0;
    for (; i + LANES <= half; i += LANES) {
        vf a = load(x, i, F32), b = load(x, half + i, F32), cosine = load(cos_sin, i, F32), sine = load(sines, i, F32);
        store(x, i, F32, a * cosine - b * sine);
        store(x, half + i, F32, b * cosine + a * sine);
    }
    for (; i < half; i++) {
        float a = x[i], b = x[half + i];
        x[i] = a * cos_sin[i] - b * sines[i];
        x[half + i] = b * cos_sin[i] + a * sines[i];
    }
}

/* Norm and rotation of `heads` heads in place. */
static void turn(const struct rope_and_write *a, float *x, int64_t heads, const float *norm, int64_t norm_n, const float *angles) {
    for (int64_t i = 0; norm && i < heads * a->head_dim; i += norm_n)
        scale_by(x + i, norm_n, inverse_rms(x + i, norm_n, (float)a->eps), norm);
    for (int64_t h = 0; angles && h < heads; h++)
        rotate(x + h * a->head_dim, angles, a->rotated / 2);
}

/* Writes the head at x as K or V of a token. */
static void keep(const struct rope_and_write *a, int64_t slot, int which, int64_t h, const float *x) {
    int64_t block = slot / a->block_tokens, offset = slot % a->block_tokens;
    int type = (int)a->kv_type;
    char *to = a->kv + (block * a->kv_block + which * a->kv_which + offset * a->kv_token + h * a->kv_head) * dtype_bytes(type);
    if (!is_compressed(type)) {
        narrow(to, type, x, a->head_dim);
        return;
    }
    char *scale = scale_at(&a->scales, block, which, offset, h);
    if (type == I8)
        put(scale, 0, F16, step_of(x, a->head_dim));
    float by = a->scales.at ? get(scale, 0, (int)a->scales.type) : 1;
    compress(to, type, x, by == 0 ? 1 : by, a->head_dim);
}

static void place_token(const struct rope_and_write *a, int64_t t, float *row) {
    int type = (int)a->type;
    int64_t bytes = dtype_bytes(type), q_n = a->heads * a->head_dim, kv_n = a->kv_heads * a->head_dim;
    const float *angles = a->cos_sin ? a->cos_sin + a->positions[t] * a->rotated : NULL;
    convert(row, a->qkv + t * a->ld_qkv * bytes, type, q_n + 2 * kv_n);
    turn(a, row, a->heads, a->q_norm, a->q_norm_n, angles);
    narrow(a->q + t * q_n * bytes, type, row, q_n);
    if (a->slots[t] < 0)
        return;
    turn(a, row + q_n, a->kv_heads, a->k_norm, a->k_norm_n, angles);
    for (int which = 0; which < 2; which++)
        for (int64_t h = 0; h < a->kv_heads; h++)
            keep(a, a->slots[t], which, h, row + q_n + which * kv_n + h * a->head_dim);
}

static void rope_and_write(struct lane *lane, const void *args) {
    const struct rope_and_write *a = args;
    float *row = lane_scratch(lane, (size_t)((a->heads + 2 * a->kv_heads) * a->head_dim * 4));
    for (struct stretch s; claim_rows(lane, a->tokens, &s);)
        for (int64_t t = s.begin; t < s.end; t++)
            place_token(a, t, row);
}

struct argmax {
    const char *x; /* [rows, n] */
    int64_t *out;  /* the first index of the largest of each row; a NaN counts as the largest, as in torch */
    float *peaks;  /* what stands there */
    int64_t rows, n, ldx, type;
};

/* The first index of the largest of n floats, or of the first NaN. */
static int64_t largest_at(const float *x, int64_t n) {
    vf most = splat(-INFINITY);
    vi nan = {0};
    int64_t i = 0, found = 0;
    for (; i + LANES <= n; i += LANES) {
        vf v = load(x, i, F32);
        nan |= v != v;
        most = vmax(most, v);
    }
    float best = vmax_of(most);
    int odd = sum((vf)(nan & (vi)splat(1.0f))) != 0;
    for (; i < n; i++) {
        odd |= x[i] != x[i];
        best = x[i] > best ? x[i] : best;
    }
    while (found < n && (odd ? x[found] == x[found] : x[found] != best))
        found++;
    return found;
}

static void argmax(struct lane *lane, const void *args) {
    const struct argmax *a = args;
    float *wide = a->type == F32 ? NULL : lane_scratch(lane, (size_t)a->n * sizeof(float));
    for (int64_t r; (r = lane_claim(lane)) < a->rows;) {
        const float *x = wide ? wide : (const float *)a->x + r * a->ldx;
        if (wide)
            convert(wide, a->x + r * a->ldx * 2, (int)a->type, a->n);
        a->out[r] = largest_at(x, a->n);
        a->peaks[r] = x[a->out[r]];
    }
}
