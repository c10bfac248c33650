/* Two loops that torch does slowly on CPUs: products with few rows, and attention over scattered pages.
 *
 * Weights stand in panels of 16 outputs, [panels][in][16], and are widened to float32 in registers: the product reads
 * each weight once, in order, in the width it is stored in. Attention reads K and V where they are, page by page, with
 * a running softmax. All sums are float32. Built and called by native.py; vectors are GCC's, so any processor will do.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 8
#define PANEL 16
#define TILE_ROWS 6
#define BLOCK_BYTES (256 * 1024)
#define AHEAD_BYTES 2048
#define WIDEN_ROWS 24
#define HEADS_MAX 128
#define DIM_MAX 512

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));
#define INLINE static inline __attribute__((always_inline))

INLINE vf load(const float *at) {
    vf value;
    memcpy(&value, at, sizeof value);
    return value;
}

INLINE void store(float *at, vf value) { memcpy(at, &value, sizeof value); }

INLINE vf load_any(const void *base, int64_t index, int narrow) {
    if (!narrow) return load((const float *)base + index);
    vh half;
    memcpy(&half, (const uint16_t *)base + index, sizeof half);
    return (vf)(__builtin_convertvector(half, vu) << 16);
}

INLINE float load_one(const void *base, int64_t index, int narrow) {
    if (!narrow) return ((const float *)base)[index];
    uint32_t bits = (uint32_t)((const uint16_t *)base)[index] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Round to the nearest bfloat16, ties to even; NaN stays NaN. */
INLINE uint16_t narrowed(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return (uint16_t)(bits >> 16) | 0x40;
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

INLINE void store_any(void *base, int64_t index, float value, int narrow) {
    if (narrow)
        ((uint16_t *)base)[index] = narrowed(value);
    else
        ((float *)base)[index] = value;
}

/* ---- products */

/* One tile, rows x PANEL, the weights fetched ahead (across the panel's end too). Few rows take two steps of `in` at a time, so that additions do not wait for each other. */
INLINE void tile(const float *x, int64_t in, const void *panel, int narrow, float *out, const int rows) {
    enum { PARTS = PANEL / LANES };
    vf sums[TILE_ROWS][PARTS] = {{{0}}}, more[TILE_ROWS][PARTS] = {{{0}}};
    int64_t k = 0;
    for (; rows <= 3 && k + 1 < in; k += 2) {
        __builtin_prefetch((const char *)panel + k * PANEL * (narrow ? 2 : 4) + AHEAD_BYTES);
        for (int part = 0; part < PARTS; part++) {
            vf one = load_any(panel, k * PANEL + part * LANES, narrow);
            vf two = load_any(panel, (k + 1) * PANEL + part * LANES, narrow);
            for (int row = 0; row < rows; row++) {
                sums[row][part] += x[row * in + k] * one;
                more[row][part] += x[row * in + k + 1] * two;
            }
        }
    }
    for (; k < in; k++) {
        vf weights[PARTS];
        __builtin_prefetch((const char *)panel + k * PANEL * (narrow ? 2 : 4) + AHEAD_BYTES);
        for (int part = 0; part < PARTS; part++) weights[part] = load_any(panel, k * PANEL + part * LANES, narrow);
        for (int row = 0; row < rows; row++)
            for (int part = 0; part < PARTS; part++) sums[row][part] += x[row * in + k] * weights[part];
    }
    for (int row = 0; row < rows; row++)
        for (int part = 0; part < PARTS; part++) store(out + row * PANEL + part * LANES, sums[row][part] + more[row][part]);
}

#define TILE(count) \
    case count: \
        if (narrow) \
            tile(x, in, panel, 1, out, count); \
        else \
            tile(x, in, panel, 0, out, count); \
        break

static void tile_of(int rows, const float *x, int64_t in, const void *panel, int narrow, float *out) {
    switch (rows) {
        TILE(1);
        TILE(2);
        TILE(3);
        TILE(4);
        TILE(5);
        TILE(6);
    }
}

struct product {
    const void *x;       /* [rows, in] */
    const void *packed;  /* [panels, in, PANEL] */
    const void *bias;    /* [outs] or null */
    void *out;           /* [rows, outs] */
    float *wide;         /* [rows, in], space */
    int64_t rows, in, outs;
    int32_t narrow; /* all four are bfloat16, else float32 */
    int32_t threads;
};

/* Rows first .. last of one panel; for many rows the panel is widened once, into memory that stays in the cache. */
static void product_block(const struct product *p, const float *x, int64_t first, int64_t last, int64_t panel) {
    int64_t width = p->outs - panel * PANEL < PANEL ? p->outs - panel * PANEL : PANEL;
    const char *weights = (const char *)p->packed + panel * p->in * PANEL * (p->narrow ? 2 : 4);
    int narrow = p->narrow;
    float sums[TILE_ROWS * PANEL], bias[PANEL] = {0}, panel_wide[p->in * PANEL];
    for (int64_t at = 0; p->bias && at < width; at++) bias[at] = load_one(p->bias, panel * PANEL + at, narrow);
    if (narrow && last - first > WIDEN_ROWS) {
        for (int64_t at = 0; at < p->in * PANEL; at += LANES) store(panel_wide + at, load_any(weights, at, 1));
        weights = (const char *)panel_wide;
        narrow = 0;
    }
    for (int64_t row = first; row < last; row += TILE_ROWS) {
        int count = (int)(last - row < TILE_ROWS ? last - row : TILE_ROWS);
        tile_of(count, x + row * p->in, p->in, weights, narrow, sums);
        for (int i = 0; i < count; i++)
            for (int64_t at = 0; at < width; at++)
                store_any(p->out, (row + i) * p->outs + panel * PANEL + at, sums[i * PANEL + at] + bias[at], p->narrow);
    }
}

void kvfence_product(const struct product *p) {
    const float *x = p->x;
    if (p->narrow) {
        for (int64_t at = 0; at < p->rows * p->in; at++) p->wide[at] = load_one(p->x, at, 1);
        x = p->wide;
    }
    int64_t panels = (p->outs + PANEL - 1) / PANEL;
    int64_t block = BLOCK_BYTES / 4 / p->in / TILE_ROWS * TILE_ROWS;
    if (block < TILE_ROWS) block = TILE_ROWS;
    int64_t blocks = (p->rows + block - 1) / block;
#pragma omp parallel for schedule(dynamic, 4) num_threads(p->threads)
    for (int64_t item = 0; item < blocks * panels; item++) {
        int64_t first = item / panels * block, last = first + block < p->rows ? first + block : p->rows;
        product_block(p, x, first, last, item % panels);
    }
}

/* ---- attention */

struct attention {
    const void *query;        /* [heads, rows, dim], strides below, dim contiguous */
    const void *key, *value;  /* [pages, page_size, kv_heads, dim], a page's slots contiguous */
    const int64_t *table;     /* [rows, width] page indices */
    const int64_t *bounds;    /* [rows, 2] first and last + 1 slot attended, counted from the first page of the row */
    const float *sinks;       /* [heads] or null */
    void *out;                /* [rows, heads, value_dim] */
    int64_t query_row, query_head, key_page, value_page; /* strides, in elements */
    int64_t rows, width, page_size, heads, kv_heads, dim, value_dim;
    float scale, softcap; /* softcap 0: none */
    int32_t narrow, threads;
};

/* e to the x for x <= 0, within 2 units of the last place; below -87 it gives the least normal number. */
INLINE vf exponential(vf x) {
    const vf least = (vf){0} - 87;
    vi above = x > least;
    x = (vf)(((vi)x & above) | ((vi)least & ~above));
    vf shifted = x * 1.44269504f + 12582912.0f;
    vf whole = shifted - 12582912.0f;
    vf rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    vf sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    return sum * (vf)((__builtin_convertvector(whole, vi) + 127) << 23);
}

INLINE float total(vf value) {
    typedef float quarter __attribute__((vector_size(16)));
    quarter halves[2];
    memcpy(halves, &value, sizeof halves);
    quarter sums = halves[0] + halves[1];
    return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

/* Widen up to LANES slots of one head into [LANES, dim]. */
INLINE void widen(const void *base, int64_t at, int64_t step, int64_t dim, int count, int narrow, float *into) {
    for (int slot = 0; slot < count; slot++)
        for (int64_t d = 0; d < dim; d += LANES) store(into + slot * dim + d, load_any(base, at + slot * step + d, narrow));
}

struct running {
    float most[HEADS_MAX], sum[HEADS_MAX];
    float query[HEADS_MAX * DIM_MAX], value[HEADS_MAX * DIM_MAX], slots[LANES * DIM_MAX];
};

INLINE void begin(const struct attention *a, struct running *run, int64_t row, int narrow) {
    for (int64_t head = 0; head < a->heads; head++) {
        run->most[head] = a->sinks ? a->sinks[head] : -1e30f;
        run->sum[head] = a->sinks ? 1 : 0;
        widen(a->query, row * a->query_row + head * a->query_head, 0, a->dim, 1, narrow, run->query + head * a->dim);
    }
    memset(run->value, 0, sizeof(float) * a->heads * a->value_dim);
}

/* Weigh up to LANES slots, whose keys are in run->slots, for one head, and let what was summed so far fade. */
INLINE void weigh(const struct attention *a, struct running *run, int64_t head, int count, float *weights) {
    float scores[LANES] = {0}, most = run->most[head];
    for (int s = 0; s < count; s++) {
        vf sums = {0};
        for (int64_t d = 0; d < a->dim; d += LANES)
            sums += load(run->query + head * a->dim + d) * load(run->slots + s * a->dim + d);
        scores[s] = total(sums) * a->scale;
        if (a->softcap != 0) scores[s] = tanhf(scores[s] / a->softcap) * a->softcap;
        most = scores[s] > most ? scores[s] : most;
    }
    vf change = {run->most[head] - most};
    float fade = exponential(change)[0], *value = run->value + head * a->value_dim;
    store(weights, exponential(load(scores) - most));
    for (int s = count; s < LANES; s++) weights[s] = 0;
    run->most[head] = most;
    run->sum[head] = run->sum[head] * fade + total(load(weights));
    for (int64_t d = 0; d < a->value_dim; d += LANES) store(value + d, load(value + d) * fade);
}

/* Take up to LANES slots of one page and one KV head into the running softmax of its query heads. */
INLINE void take(const struct attention *a, struct running *run, int64_t page, int64_t slot, int count, int64_t kv_head, int narrow) {
    int64_t group = a->heads / a->kv_heads, first = kv_head * group;
    int64_t key_step = a->kv_heads * a->dim, value_step = a->kv_heads * a->value_dim;
    float weights[HEADS_MAX][LANES];
    widen(a->key, page * a->key_page + slot * key_step + kv_head * a->dim, key_step, a->dim, count, narrow, run->slots);
    for (int64_t g = 0; g < group; g++) weigh(a, run, first + g, count, weights[g]);
    int64_t at = page * a->value_page + slot * value_step + kv_head * a->value_dim;
    widen(a->value, at, value_step, a->value_dim, count, narrow, run->slots);
    for (int64_t g = 0; g < group; g++)
        for (int64_t d = 0; d < a->value_dim; d += LANES) {
            float *value = run->value + (first + g) * a->value_dim + d;
            vf sums = load(value);
            for (int s = 0; s < count; s++) sums += weights[g][s] * load(run->slots + s * a->value_dim + d);
            store(value, sums);
        }
}

/* One row, page by page: all heads of a page are read while it is near. */
INLINE void attend_row(const struct attention *a, int64_t row, int narrow) {
    struct running run;
    int64_t end = a->bounds[2 * row + 1];
    begin(a, &run, row, narrow);
    for (int64_t slot = a->bounds[2 * row]; slot < end;) {
        int64_t page = a->table[row * a->width + slot / a->page_size], place = slot % a->page_size;
        int64_t left = a->page_size - place < end - slot ? a->page_size - place : end - slot;
        int count = (int)(left < LANES ? left : LANES);
        for (int64_t kv_head = 0; kv_head < a->kv_heads; kv_head++) {
            if (count == LANES) /* the same, with loops of known length */
                take(a, &run, page, place, LANES, kv_head, narrow);
            else
                take(a, &run, page, place, count, kv_head, narrow);
        }
        slot += count;
    }
    for (int64_t head = 0; head < a->heads; head++)
        for (int64_t d = 0; d < a->value_dim; d++)
            store_any(a->out, (row * a->heads + head) * a->value_dim + d, run.value[head * a->value_dim + d] / run.sum[head], narrow);
}

void kvfence_attention(const struct attention *a) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(a->threads)
    for (int64_t row = 0; row < a->rows; row++) {
        if (a->narrow)
            attend_row(a, row, 1);
        else
            attend_row(a, row, 0);
    }
}
