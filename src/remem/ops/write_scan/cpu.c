/* One segment of the write scan for every stream, forward and backward; README.md has the equations.
 *
 * Columns of `old`, `items`, `to` and `uses`: [score side m | reset d | keep d | new d]. Nothing of [k, n, m] is stored.
 * Items that are padding and streams without a real item cost nothing.
 */
#include <stdbool.h>
#include <stdlib.h>

#include "vector_math.h"

/* the real items of a stream's segment, by number; returns how many */
static long real_items(const bool *real, long n, long *which) {
    long count = 0;
    for (long j = 0; j < n; j++)
        if (real[j]) which[count++] = j;
    return count;
}

/* sum = sum over the real items of their share times their row; a block of columns stays in registers */
static void weighted_rows(
    float *sum, long width, const float *rows, long stride, const long *which, const float *share, long count
) {
    long e = 0;
    for (; e + 4 * WIDE <= width; e += 4 * WIDE) {
        wide block[4] = {{0}};
        for (long q = 0; q < count; q++) {
            const float p = share[which[q]];
            const wide *row = (const wide *)(rows + which[q] * stride + e);
            for (long u = 0; u < 4; u++) block[u] += p * row[u];
        }
        for (long u = 0; u < 4; u++) ((wide *)(sum + e))[u] = block[u];
    }
    for (; e < width; e++) {
        float rest = 0.0f;
        for (long q = 0; q < count; q++) rest += share[which[q]] * rows[which[q] * stride + e];
        sum[e] = rest;
    }
}

void write_segment(
    long b, long k, long n, long m, long d,
    const float *slots,          /* [b, k, d] */
    float *old,                  /* [b, k, m + 3d]: products of the slots; their bias is added in place */
    const float *bias,           /* [k, m + 3d] */
    const float *new_bias,       /* [d] */
    const float *score,          /* [m] */
    const float *items,          /* [s, n, m + 3d] */
    const int64_t *order, long order_stride,
    const bool *real, long real_stride,
    float *next,                 /* [b, k, d] */
    float *shares,               /* [b, k, n] */
    float *kept,                 /* [b, k, m + 4d]: what the way back needs: score side and new of `old`, then the gates */
    float *entropy               /* [b] */
) {
    const long c = m + 3 * d;
#pragma omp parallel for schedule(static)
    for (long i = 0; i < b; i++) {
        const float *slot = slots + i * k * d;
        float *share = shares + i * k * n, *after = next + i * k * d;
        long which[n];
        long count = real_items(real + i * real_stride, n, which);
        memset(share, 0, k * n * sizeof(float));
        entropy[i] = 0.0f;
        if (!count) {
            memcpy(after, slot, k * d * sizeof(float));
            continue;
        }
        const float *segment = items + order[i * order_stride] * n * c;
        float *mine = old + i * k * c;
        for (long e = 0; e < k * c; e++) mine[e] += bias[e];
        float spread = 0.0f;
        for (long q = 0; q < count; q++) {
            const long j = which[q];
            const float *side = segment + j * c;
            float scores[k], highest = -INFINITY, sum = 0.0f;
            for (long a = 0; a < k; a++) {
                const float *row = mine + a * c;
                float total = 0.0f;
                for (long e = 0; e < m; e++) total += score[e] * vtanh(row[e] + side[e]);
                scores[a] = total;
                highest = total > highest ? total : highest;
            }
            for (long a = 0; a < k; a++) sum += scores[a] = vexp(scores[a] - highest);
            for (long a = 0; a < k; a++) {
                const float p = scores[a] / sum;
                share[a * n + j] = p;
                if (p > 0.0f) spread -= p * logf(p);
            }
        }
        entropy[i] = spread;
        for (long a = 0; a < k; a++) {
            float now[3 * d];
            weighted_rows(now, 3 * d, segment + m, c, which, share + a * n, count);
            const float *from = mine + a * c + m, *before = slot + a * d;
            float *gate = kept + (i * k + a) * (m + 4 * d);
            memcpy(gate, mine + a * c, m * sizeof(float));
            memcpy(gate + m, from + 2 * d, d * sizeof(float));
            gate += m + d;
#pragma omp simd
            for (long e = 0; e < d; e++) {
                const float reset = vsigmoid(now[e] + from[e]), keep = vsigmoid(now[d + e] + from[d + e]);
                const float new = vtanh(now[2 * d + e] + new_bias[e] + reset * from[2 * d + e]);
                gate[e] = reset;
                gate[d + e] = keep;
                gate[2 * d + e] = new;
                after[a * d + e] = new + keep * (before[e] - new);
            }
        }
    }
}

/* 0, or 1 where there was no memory for the work */
int write_segment_backward(
    long b, long k, long n, long m, long d,
    const float *slots, const float *kept, const float *score, const float *items,
    const int64_t *order, long order_stride,
    const bool *real, long real_stride,
    const float *shares,
    float *grad,                 /* [b, k, d]: of the slots after; on return, what reaches those before through keep */
    float *to,                   /* [b, k, m + 3d]: gradient of the products */
    float *uses, long uses_stride, /* [b, n, m + 3d]: gradient of the segment's items */
    float *on_score,             /* [b, m]: gradient of score, added up */
    float *on_bias               /* [b, d]: gradient of new_bias, added up */
) {
    const long c = m + 3 * d;
    int failed = 0;
#pragma omp parallel for schedule(static) reduction(| : failed)
    for (long i = 0; i < b; i++) {
        float *out = to + i * k * c, *used = uses + i * uses_stride;
        long which[n];
        long count = real_items(real + i * real_stride, n, which);
        /* k n numbers would be too many for a thread's stack where segments are long */
        float *on_now = count ? malloc(k * (3 * d + n) * sizeof(float)) : NULL;
        memset(used, 0, n * c * sizeof(float));
        if (!on_now) {
            memset(out, 0, k * c * sizeof(float));
            failed |= count != 0;
            continue;
        }
        const float *mine = kept + i * k * (m + 4 * d), *share = shares + i * k * n;
        const float *segment = items + order[i * order_stride] * n * c;
        for (long a = 0; a < k; a++) {
            const float *slot = slots + (i * k + a) * d;
            const float *aside = mine + a * (m + 4 * d) + m, *gate = aside + d;
            float *g = grad + (i * k + a) * d, *now = on_now + a * 3 * d, *row = out + a * c + m;
            float *bias = on_bias + i * d;
#pragma omp simd
            for (long e = 0; e < d; e++) {
                const float reset = gate[e], keep = gate[d + e], new = gate[2 * d + e];
                const float on_new = g[e] * (1.0f - keep) * (1.0f - new * new);
                const float on_reset = on_new * aside[e] * reset * (1.0f - reset);
                const float on_keep = g[e] * (slot[e] - new) * keep * (1.0f - keep);
                now[e] = row[e] = on_reset;
                now[d + e] = row[d + e] = on_keep;
                now[2 * d + e] = on_new;
                row[2 * d + e] = on_new * reset;
                bias[e] += on_new;
                g[e] *= keep;
            }
        }
        float *through = on_now + k * 3 * d; /* [k, n]: gradient of the scores */
        for (long q = 0; q < count; q++) {
            const long j = which[q];
            const float *given = segment + j * c + m;
            float *use = used + j * c + m, mean = 0.0f;
            for (long a = 0; a < k; a++) {
                const float p = share[a * n + j], *now = on_now + a * 3 * d;
                float on_share = 0.0f;
#pragma omp simd reduction(+ : on_share)
                for (long e = 0; e < 3 * d; e++) {
                    on_share += now[e] * given[e];
                    use[e] += p * now[e];
                }
                through[a * n + j] = on_share;
                mean += p * on_share;
            }
            for (long a = 0; a < k; a++) through[a * n + j] = share[a * n + j] * (through[a * n + j] - mean);
        }
        float *total = on_score + i * m;
        for (long a = 0; a < k; a++) {
            const float *row = mine + a * (m + 4 * d);
            float sums[m];
            memset(sums, 0, sizeof sums);
            for (long q = 0; q < count; q++) {
                const long j = which[q];
                const float *side = segment + j * c, s = through[a * n + j];
                float *use = used + j * c;
#pragma omp simd
                for (long e = 0; e < m; e++) {
                    const float x = vtanh(row[e] + side[e]);
                    const float part = s * (1.0f - x * x);
                    sums[e] += part;
                    use[e] += part;
                    total[e] += s * x;
                }
            }
            for (long e = 0; e < m; e++) out[a * c + e] = sums[e] * score[e];
        }
        for (long q = 0; q < count; q++)
            for (long e = 0; e < m; e++) used[which[q] * c + e] *= score[e];
        free(on_now);
    }
    return failed;
}
