/* Attention inside very many very short segments, forward and backward; README.md has the equations.
 *
 * q, k and v are parts of one projection [s, n, 3, heads, c], read where they lie, and so is their gradient. Weights are
 * computed again on the way back. A hidden key is not looked at, whatever it holds.
 */
#include <stdbool.h>
#include <stdlib.h>

#include "vector_math.h"

/* What a thread works with; rows have room for `room` keys. */
typedef struct {
    float *turned, *weights, *through;
    long *which;
    long room, shown;
} Work;

static bool make_work(Work *work, long n, long c) {
    work->room = (n + WIDE - 1) / WIDE * WIDE;
    work->turned = calloc(c * work->room, sizeof(float));
    work->weights = malloc(n * work->room * sizeof(float));
    work->through = malloc(n * work->room * sizeof(float));
    work->which = malloc(n * sizeof(long));
    return work->turned && work->weights && work->through && work->which;
}

static void free_work(Work *work) {
    free(work->turned);
    free(work->weights);
    free(work->through);
    free(work->which);
}

static void find_shown(Work *work, const bool *mask, long n) {
    work->shown = 0;
    for (long j = 0; j < n; j++)
        if (mask[j]) work->which[work->shown++] = j;
}

/* Ask for what the next segment reads: heads are picked out of it in an order that no processor foresees. */
static void fetch(const float *from, long count, bool is_there) {
    for (long e = 0; is_there && e < count; e += WIDE) __builtin_prefetch(from + e);
}

/* products [n, room] of every row with every key or value that is shown */
static void multiply(Work *work, const float *rows, long row_stride, const float *keys, long stride, long n, long c,
                     float *products) {
    const long room = work->room;
    for (long j = 0; j < work->shown; j++)
        for (long e = 0; e < c; e++) work->turned[e * room + j] = keys[work->which[j] * stride + e];
    for (long i = 0; i < n; i++)
        for (long block = 0; block < room; block += WIDE) {
            wide sums[2] = {{0}};
            const float *row = rows + i * row_stride;
            for (long e = 0; e + 1 < c; e += 2)
                for (long u = 0; u < 2; u++) sums[u] += row[e + u] * *(wide *)(work->turned + (e + u) * room + block);
            if (c % 2) sums[0] += row[c - 1] * *(wide *)(work->turned + (c - 1) * room + block);
            *(wide *)(products + i * room + block) = sums[0] + sums[1];
        }
}

/* softmax over the keys that are shown, of products times 1 / sqrt(c) */
static void weigh(Work *work, const float *q, const float *k, long stride, long n, long c) {
    const float scale = 1.0f / sqrtf((float)c);
    multiply(work, q, stride, k, stride, n, c, work->weights);
    for (long i = 0; i < n; i++) {
        float *row = work->weights + i * work->room, highest = -INFINITY, sum = 0.0f;
        for (long j = 0; j < work->shown; j++) highest = row[j] > highest ? row[j] : highest;
        for (long j = 0; j < work->shown; j++) sum += row[j] = vexp(scale * (row[j] - highest));
        for (long j = 0; j < work->shown; j++) row[j] /= sum;
    }
}

/* out = sum over j of share[j] times row which[j] (or j, where there is no which) */
static void mix(float *out, const float *share, long share_stride, const float *rows, long stride, const long *which,
                long count, long c) {
    long e = 0;
    for (; e + 2 * WIDE <= c; e += 2 * WIDE) { /* two sums that do not wait for one another */
        wide sums[2] = {{0}};
        for (long j = 0; j < count; j++) {
            const float *row = rows + (which ? which[j] : j) * stride + e;
            for (long u = 0; u < 2; u++) sums[u] += share[j * share_stride] * *(const wide *)(row + u * WIDE);
        }
        for (long u = 0; u < 2; u++) *(wide *)(out + e + u * WIDE) = sums[u];
    }
    for (; e + WIDE <= c; e += WIDE) {
        wide sum = {0};
        for (long j = 0; j < count; j++)
            sum += share[j * share_stride] * *(const wide *)(rows + (which ? which[j] : j) * stride + e);
        *(wide *)(out + e) = sum;
    }
    for (; e < c; e++) {
        float sum = 0.0f;
        for (long j = 0; j < count; j++) sum += share[j * share_stride] * rows[(which ? which[j] : j) * stride + e];
        out[e] = sum;
    }
}

/* out [s, n, heads, c]; mask [s, n]. 0, or 1 where there was no memory for the work */
int attend(long s, long n, long heads, long c, const float *qkv, const bool *mask, float *out) {
    const long width = heads * c, stride = 3 * width;
    int failed = 0;
#pragma omp parallel reduction(| : failed)
    {
        Work work;
        const bool ready = make_work(&work, n, c);
        failed |= !ready;
#pragma omp for schedule(static)
        for (long i = 0; i < s; i++) {
            if (!ready) continue;
            fetch(qkv + (i + 1) * n * stride, n * stride, i + 1 < s);
            find_shown(&work, mask + i * n, n);
            for (long h = 0; h < heads; h++) {
                const float *q = qkv + i * n * stride + h * c, *k = q + width, *v = k + width;
                weigh(&work, q, k, stride, n, c);
                for (long a = 0; a < n; a++)
                    mix(out + (i * n + a) * width + h * c, work.weights + a * work.room, 1, v, stride, work.which,
                        work.shown, c);
            }
        }
        free_work(&work);
    }
    return failed;
}

/* the gradient of qkv from that of out */
int attend_backward(
    long s, long n, long heads, long c, const float *qkv, const bool *mask, const float *grad, float *d_qkv
) {
    const long width = heads * c, stride = 3 * width;
    const float scale = 1.0f / sqrtf((float)c);
    int failed = 0;
#pragma omp parallel reduction(| : failed)
    {
        Work work;
        const bool ready = make_work(&work, n, c);
        const long room = work.room;
        failed |= !ready;
#pragma omp for schedule(static)
        for (long i = 0; i < s; i++) {
            if (!ready) continue;
            fetch(qkv + (i + 1) * n * stride, n * stride, i + 1 < s);
            fetch(grad + (i + 1) * n * width, n * width, i + 1 < s);
            find_shown(&work, mask + i * n, n);
            for (long j = 0; j < n; j++) /* a hidden key and its value have no part in anything */
                if (!mask[i * n + j]) memset(d_qkv + (i * n + j) * stride + width, 0, 2 * width * sizeof(float));
            for (long h = 0; h < heads; h++) {
                const long at = i * n * stride + h * c;
                const float *q = qkv + at, *k = q + width, *v = k + width, *g = grad + i * n * width + h * c;
                weigh(&work, q, k, stride, n, c);
                multiply(&work, g, width, v, stride, n, c, work.through);
                for (long a = 0; a < n; a++) {
                    float *p = work.weights + a * room, *on_score = work.through + a * room, mean = 0.0f;
                    for (long j = 0; j < work.shown; j++) mean += p[j] * on_score[j];
                    for (long j = 0; j < work.shown; j++) on_score[j] = scale * p[j] * (on_score[j] - mean);
                    mix(d_qkv + at + a * stride, on_score, 1, k, stride, work.which, work.shown, c);
                }
                for (long j = 0; j < work.shown; j++) {
                    float *d_key = d_qkv + at + width + work.which[j] * stride;
                    mix(d_key, work.through + j, room, q, stride, NULL, n, c);
                    mix(d_key + width, work.weights + j, room, g, width, NULL, n, c);
                }
            }
        }
        free_work(&work);
    }
    return failed;
}
