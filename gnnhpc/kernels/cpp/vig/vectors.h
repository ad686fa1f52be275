// Vectors of float32 in whatever width the machine has, and GELU with its derivative on them.

#pragma once

#include <algorithm>
#include <cstdint>

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

namespace {

using i64 = std::int64_t;
typedef float Vec __attribute__((vector_size(LANES * sizeof(float)), may_alias));
typedef std::int32_t Int __attribute__((vector_size(LANES * sizeof(float))));

constexpr int kWide = 4;  // vectors of nodes side by side

#define ALWAYS_INLINE __attribute__((always_inline))
#define INLINE inline ALWAYS_INLINE

INLINE Vec all(float value) { return value - Vec{}; }

// A vector at any address; lanes past `count` are zero, and not stored.
typedef float Loose __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

INLINE Vec load(const float* at, i64 count) {
    if (count == LANES) return *reinterpret_cast<const Loose*>(at);
    Vec vec = {};
    std::copy(at, at + count, reinterpret_cast<float*>(&vec));
    return vec;
}

// The same, and what lies `ahead` of it is fetched for later.
INLINE Vec load(const float* at, i64 count, i64 ahead) {
    __builtin_prefetch(at + ahead);
    return load(at, count);
}

INLINE void store(const Vec& vec, float* at, i64 count) {
    if (count == LANES)
        *reinterpret_cast<Loose*>(at) = vec;
    else
        std::copy_n(reinterpret_cast<const float*>(&vec), count, at);
}

// A number each of kWide vectors of nodes, computed in step: the chains of dependent operations
// of one vector fill the waits of another.
struct Nodes {
    Vec at[kWide];

    INLINE Nodes() = default;
    INLINE explicit Nodes(float value) {
        for (Vec& vec : at) vec = all(value);
    }
    float* lanes() { return reinterpret_cast<float*>(at); }
    const float* lanes() const { return reinterpret_cast<const float*>(at); }
};

#define EACH_VECTOR(expression)                                 \
    do {                                                        \
        Nodes out;                                              \
        for (int w = 0; w < kWide; ++w) out.at[w] = expression; \
        return out;                                             \
    } while (false)

INLINE Nodes operator*(const Nodes& a, const Nodes& b) {
    EACH_VECTOR(a.at[w] * b.at[w]);
}
INLINE Nodes operator*(const Nodes& a, float b) {
    EACH_VECTOR(a.at[w] * b);
}
INLINE Nodes operator+(const Nodes& a, const Nodes& b) {
    EACH_VECTOR(a.at[w] + b.at[w]);
}
INLINE Nodes operator+(const Nodes& a, float b) {
    EACH_VECTOR(a.at[w] + b);
}
INLINE Nodes operator-(const Nodes& a, const Nodes& b) {
    EACH_VECTOR(a.at[w] - b.at[w]);
}

// |value|, but at most `limit`. This and the next let NaN through, so that it reaches the loss.
INLINE Nodes magnitude_below(const Nodes& value, float limit) {
#if defined(__AVX512F__)
    EACH_VECTOR((Vec)_mm512_min_ps((__m512)all(limit),
                                   (__m512)((Int)value.at[w] & 0x7fffffff)));
#else
    EACH_VECTOR((Vec)((Int)value.at[w] & 0x7fffffff) > limit
                    ? all(limit)
                    : (Vec)((Int)value.at[w] & 0x7fffffff));
#endif
}

INLINE Nodes positive_part(const Nodes& value) {
#if defined(__AVX512F__)
    EACH_VECTOR((Vec)_mm512_max_ps(_mm512_setzero_ps(), (__m512)value.at[w]));
#else
    EACH_VECTOR(value.at[w] < 0.0f ? Vec{} : value.at[w]);
#endif
}

// 1 - value where `sign` is positive, else value.
INLINE Nodes mirrored(const Nodes& value, const Nodes& sign) {
    EACH_VECTOR(sign.at[w] > 0.0f ? 1.0f - value.at[w] : value.at[w]);
}

// 2^power, for powers in [-126, 0]; relative error 1e-7.
INLINE Nodes exp2_negative(const Nodes& power) {
#if defined(__AVX512F__)
    Nodes whole;
    for (int w = 0; w < kWide; ++w)
        whole.at[w] = (Vec)_mm512_roundscale_ps((__m512)power.at[w], 0);
#else
    const Nodes shifted = power + 12582912.0f;  // 1.5 * 2^23: rounds to an integer
    const Nodes whole = shifted + -12582912.0f;
#endif
    const Nodes part = power - whole;
    Nodes p = Nodes(0.00132764751f) * part + 0.00967554243f;
    p = p * part + 0.0555071327f;
    p = p * part + 0.240221197f;
    p = p * part + 0.693146967f;
    p = p * part + 1.00000007f;
#if defined(__AVX512F__)
    EACH_VECTOR((Vec)_mm512_scalef_ps((__m512)p.at[w], (__m512)whole.at[w]));
#else
    EACH_VECTOR((Vec)((Int)p.at[w] + ((Int)shifted.at[w] << 23)));
#endif
}

// Everything below works on u scaled by kScale, so that exp(-u^2/2) is 2^-(u * u).
constexpr float kScale = 0.84932180028801907f;    // sqrt(log2(e) / 2)
constexpr float kDensity = 0.46971863934982566f;  // 1 / (kScale * sqrt(2 pi))
constexpr float kFar = 5.0959308f;                // 6 * kScale: beyond, the tail is below 1e-9

// Phi(-|u|) = exp(-u^2/2) P(|u|) with Phi the normal distribution, P of degree 11 by weighted
// minimax; GELU(u) = max(u, 0) - |u| Phi(-|u|). Absolute error 2e-7 * max(1, |u|), rounding
// included.
struct Gelu {
    Nodes u, magnitude, density, tail;

    INLINE explicit Gelu(const Nodes& at) : u(at), magnitude(magnitude_below(at, kFar)) {
        density = exp2_negative(Nodes(0.0f) - magnitude * magnitude);
        tail = density * ratio(magnitude);
    }

    // P.
    static INLINE Nodes ratio(const Nodes& m) {
        Nodes p = Nodes(-1.47213904e-06f) * m + 3.2190768e-05f;
        p = p * m + -0.000316423081f;
        p = p * m + 0.00187417784f;
        p = p * m + -0.0076224176f;
        p = p * m + 0.0232234936f;
        p = p * m + -0.0569056494f;
        p = p * m + 0.118580457f;
        p = p * m + -0.216629347f;
        p = p * m + 0.346512151f;
        p = p * m + -0.469715184f;
        return p * m + 0.499999968f;
    }

    // GELU, scaled as u is.
    INLINE Nodes value() const { return positive_part(u) - magnitude * tail; }

    // Its derivative: Phi(u) + u phi(u), which for -u is one less that.
    INLINE Nodes slope() const {
        return mirrored(tail - magnitude * density * kDensity, u);
    }
};

// Sum of the lanes in single precision, halves first.
INLINE float quick_sum(const Vec& vec) {
    typedef float Four __attribute__((vector_size(16), may_alias));
    const Four* part = reinterpret_cast<const Four*>(&vec);
    Four four = part[0];
    if constexpr (LANES == 8) four += part[1];
    if constexpr (LANES == 16) four = (four + part[1]) + (part[2] + part[3]);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

// Sum of the lanes, four at a time.
INLINE double sum(const Vec& vec) {
    const float* lane = reinterpret_cast<const float*>(&vec);
    double four[4] = {lane[0], lane[1], lane[2], lane[3]};
    for (int i = 4; i < LANES; i += 4)
        for (int l = 0; l < 4; ++l) four[l] += static_cast<double>(lane[i + l]);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

}  // namespace
