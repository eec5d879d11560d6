/* exp, tanh and sigmoid in plain arithmetic, so that a compiler can do sixteen at once. NaN stays NaN.
 *
 * Relative error of exp below 5e-7, absolute error of the other two below 2e-7.
 */
#ifndef REMEM_VECTOR_MATH_H
#define REMEM_VECTOR_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* sixteen numbers that may lie anywhere; for loops that a compiler would turn into gathers */
typedef float wide __attribute__((vector_size(64), aligned(4), may_alias));
enum { WIDE = 16 };

static inline float vexp(float x) {
    x = x > 88.0f ? 88.0f : x;
    x = x < -87.0f ? -87.0f : x;
    /* e^x = 2^k e^r with |r| <= ln(2) / 2; ln(2) in two parts, the first of few bits, so that k times it is exact */
    float k = rintf(x * 1.44269504f);
    /* by name, as sums that may be reordered would put the two together again */
    float r = __builtin_fmaf(k, 2.12194440e-4f, __builtin_fmaf(-k, 0.693359375f, x));
    float series = 1.0f + r * (1.0f + r * (1.0f / 2 + r * (1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120
                 + r * (1.0f / 720 + r * (1.0f / 5040)))))));
    int32_t bits = ((int32_t)k + 127) * (1 << 23);
    float power;
    memcpy(&power, &bits, sizeof power);
    return series * power;
}

static inline float vtanh(float x) { return 1.0f - 2.0f / (vexp(2.0f * x) + 1.0f); }

static inline float vsigmoid(float x) { return 1.0f / (1.0f + vexp(-x)); }

#endif
