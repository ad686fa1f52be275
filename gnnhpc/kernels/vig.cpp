// The two-layer network a node that a ViG layer collapses to, and the passes around it, float32.
//
// y[n] = GELU(z[n] A + a) B + b with z[n] three channels (FFN), or three channels, the sum of the
// three channels over the node's neighbours, and their number (Grapher). Hidden activations live
// in registers, in backward too. Arrays are row-major and contiguous; rows of activations are
// [rows][3], row = (image * height + row) * width + column.
//
// Work is dealt in parts whose number depends on the rows alone, and sums of parts are added in
// order: results do not depend on the number of threads, nor on which thread did what.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

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
typedef float Vec __attribute__((vector_size(LANES * sizeof(float))));
typedef std::int32_t Int __attribute__((vector_size(LANES * sizeof(float))));

constexpr int kChannels = 3;
constexpr int kVectors = 16;  // of a piece: what is read again and again for a piece fits in L1
constexpr i64 kPiece = kVectors * LANES;
constexpr i64 kParts = 48;

inline Vec all(float value) { return value - Vec{}; }

// 2^power, for powers in [-126, 0]; relative error 1e-7.
inline Vec exp2_negative(Vec power) {
#if defined(__AVX512F__)
    const Vec whole = (Vec)_mm512_roundscale_ps((__m512)power, 0);
#else
    const Vec shift = all(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const Vec shifted = power + shift;
    const Vec whole = shifted - shift;
#endif
    const Vec part = power - whole;
    Vec p = all(0.00132764751f);
    p = p * part + 0.00967554243f;
    p = p * part + 0.0555071327f;
    p = p * part + 0.240221197f;
    p = p * part + 0.693146967f;
    p = p * part + 1.00000007f;
#if defined(__AVX512F__)
    return (Vec)_mm512_scalef_ps((__m512)p, (__m512)whole);
#else
    return (Vec)((Int)p + ((Int)shifted << 23));
#endif
}

// Everything below works on u scaled by kScale, so that exp(-u^2/2) is 2^-(u * u).
constexpr float kScale = 0.84932180028801907f;      // sqrt(log2(e) / 2)
constexpr float kDensity = 0.46971863934982566f;    // 1 / (kScale * sqrt(2 pi))
constexpr float kFar = 5.0959308f;                  // 6 * kScale: beyond, the tail is below 1e-9

// Phi(-|u|) = exp(-u^2/2) P(|u|) with Phi the normal distribution, P of degree 11 by weighted
// minimax; GELU(u) = max(u, 0) - |u| Phi(-|u|). Absolute error 2e-7 * max(1, |u|), rounding
// included. NaN goes through.
struct Gelu {
    Vec magnitude, density, tail;

    explicit Gelu(Vec u) {
        const Vec absolute = (Vec)((Int)u & 0x7fffffff);
        magnitude = absolute > kFar ? all(kFar) : absolute;
        density = exp2_negative(-(magnitude * magnitude));
        Vec p = all(-1.47213904e-06f);
        p = p * magnitude + 3.2190768e-05f;
        p = p * magnitude - 0.000316423081f;
        p = p * magnitude + 0.00187417784f;
        p = p * magnitude - 0.0076224176f;
        p = p * magnitude + 0.0232234936f;
        p = p * magnitude - 0.0569056494f;
        p = p * magnitude + 0.118580457f;
        p = p * magnitude - 0.216629347f;
        p = p * magnitude + 0.346512151f;
        p = p * magnitude - 0.469715184f;
        p = p * magnitude + 0.499999968f;
        tail = density * p;
    }

    // GELU, scaled as u is.
    Vec value(Vec u) const { return (u < 0.0f ? Vec{} : u) - magnitude * tail; }

    // Its derivative: Phi(u) + u phi(u), which for -u is one less that.
    Vec slope(Vec u) const {
        const Vec left = tail - kDensity * (magnitude * density);
        return u > 0.0f ? 1.0f - left : left;
    }
};

inline float sum(Vec vec) {
    float total = 0.0f;
    for (int lane = 0; lane < LANES; ++lane) total += vec[lane];
    return total;
}

i64 parts_of(i64 units) { return std::max<i64>(1, std::min(units, kParts)); }

// task(part, first, last) for parts of 0..units, on up to `threads` threads.
template <class Task>
void in_parts(i64 units, i64 threads, const Task& task) {
    const i64 parts = parts_of(units);
    (void)threads;
#pragma omp parallel for schedule(dynamic, 1) num_threads(static_cast<int>(threads)) if (threads > 1 && parts > 1)
    for (i64 part = 0; part < parts; ++part)
        task(part, units * part / parts, units * (part + 1) / parts);
}

// Sums over rows of `count` products a row, in double, part by part.
template <int count, class Row>
void sum_rows(i64 rows, i64 threads, double* sums, const Row& row) {
    std::vector<double> partial(static_cast<std::size_t>(kParts * count), 0.0);
    in_parts(rows, threads, [&](i64 part, i64 first, i64 last) {
        double local[count] = {};
        for (i64 n = first; n < last; ++n) row(n, local);
        std::copy(local, local + count, &partial[static_cast<std::size_t>(part * count)]);
    });
    std::fill(sums, sums + count, 0.0);
    for (i64 part = 0; part < parts_of(rows); ++part)
        for (int i = 0; i < count; ++i) sums[i] += partial[static_cast<std::size_t>(part * count + i)];
}

// Number of neighbours of each node of an image, as float.
std::vector<float> degrees(i64 height, i64 width) {
    std::vector<float> degree;
    degree.reserve(static_cast<std::size_t>(height * width));
    for (i64 row = 0; row < height; ++row)
        for (i64 column = 0; column < width; ++column) {
            const i64 down = 1 + (row > 0) + (row + 1 < height);
            const i64 across = 1 + (column > 0) + (column + 1 < width);
            degree.push_back(static_cast<float>(down * across - 1));
        }
    return degree;
}

// One row of an image: the 3 x 3 sum less the centre, for each of its floats.
void box_row(const float* image, i64 row, i64 height, i64 width, float* sums, float* out) {
    const i64 length = width * kChannels;
    const float* here = image + row * length;
    const float* above = row > 0 ? here - length : nullptr;
    const float* below = row + 1 < height ? here + length : nullptr;
    std::copy(here, here + length, sums);
    if (above)
        for (i64 i = 0; i < length; ++i) sums[i] += above[i];
    if (below)
        for (i64 i = 0; i < length; ++i) sums[i] += below[i];
    for (i64 i = 0; i < length; ++i) out[i] = sums[i] - here[i];
    for (i64 i = kChannels; i < length; ++i) out[i] += sums[i - kChannels];
    for (i64 i = 0; i + kChannels < length; ++i) out[i] += sums[i + kChannels];
}

// A piece's activations, one vector of nodes a channel; rows past the end are zero.
struct Planes {
    Vec lane[kChannels][kVectors];

    void load(const float* rows, i64 count) {
        if (count < kPiece) std::memset(static_cast<void*>(lane), 0, sizeof lane);
        for (int c = 0; c < kChannels; ++c) {
            float* plane = reinterpret_cast<float*>(lane[c]);
            for (i64 n = 0; n < count; ++n) plane[n] = rows[n * kChannels + c];
        }
    }

    void store(float* rows, i64 count) const {
        for (int c = 0; c < kChannels; ++c) {
            const float* plane = reinterpret_cast<const float*>(lane[c]);
            for (i64 n = 0; n < count; ++n) rows[n * kChannels + c] = plane[n];
        }
    }
};

// Weights of one hidden unit side by side: inputs, the constant, outputs.
template <int inputs>
struct Unit {
    float in[inputs], constant, out[kChannels];
};

// `first` is [hidden][inputs + 1], `second` [3][hidden]. Scaled as Gelu wants it.
template <int inputs>
std::vector<Unit<inputs>> pack(const float* first, const float* second, i64 hidden) {
    std::vector<Unit<inputs>> units(static_cast<std::size_t>(hidden));
    for (i64 j = 0; j < hidden; ++j) {
        Unit<inputs>& unit = units[static_cast<std::size_t>(j)];
        const float* row = first + j * (inputs + 1);
        for (int k = 0; k < inputs; ++k) unit.in[k] = row[k] * kScale;
        unit.constant = row[inputs] * kScale;
        for (int c = 0; c < kChannels; ++c) unit.out[c] = second[c * hidden + j] / kScale;
    }
    return units;
}

// The inputs of a piece: channels, and for the Grapher neighbour sums and degrees.
template <int inputs>
struct Inputs {
    static constexpr bool neighbours = inputs > kChannels;
    Planes own;
    Planes around;
    Vec degree[kVectors];

    void load(const float* x, const float* s, const std::vector<float>& degree_of, i64 first,
              i64 count) {
        own.load(x + first * kChannels, count);
        if constexpr (neighbours) {
            around.load(s + first * kChannels, count);
            float* plane = reinterpret_cast<float*>(degree);
            const i64 nodes = static_cast<i64>(degree_of.size());
            i64 node = first % nodes;
            for (i64 n = 0; n < kPiece; ++n) {
                plane[n] = n < count ? degree_of[static_cast<std::size_t>(node)] : 0.0f;
                if (++node == nodes) node = 0;
            }
        }
    }

    Vec get(int k, int v) const {
        if (k < kChannels) return own.lane[k][v];
        if (k < 2 * kChannels) return around.lane[k - kChannels][v];
        return degree[v];
    }

    Vec hidden(const Unit<inputs>& unit, int v) const {
        Vec u = own.lane[0][v] * unit.in[0] + unit.constant;
        for (int k = 1; k < inputs; ++k) u += get(k, v) * unit.in[k];
        return u;
    }
};

template <int inputs>
void forward(const float* x, const float* s, i64 rows, i64 height, i64 width, i64 hidden,
             const float* first_weight, const float* second_weight, const float* second_bias,
             i64 threads, float* y) {
    const auto units = pack<inputs>(first_weight, second_weight, hidden);
    const auto degree_of = inputs > kChannels ? degrees(height, width) : std::vector<float>();
    in_parts((rows + kPiece - 1) / kPiece, threads, [&](i64, i64 from, i64 to) {
        Inputs<inputs> in;
        Planes out;
        for (i64 piece = from; piece < to; ++piece) {
            const i64 start = piece * kPiece;
            const i64 count = std::min(kPiece, rows - start);
            in.load(x, s, degree_of, start, count);
            for (int v = 0; v < kVectors; v += 2) {
                Vec sums[2][kChannels];
                for (int c = 0; c < kChannels; ++c) sums[0][c] = sums[1][c] = all(second_bias[c]);
                for (const Unit<inputs>& unit : units)
                    for (int w = 0; w < 2; ++w) {
                        const Vec u = in.hidden(unit, v + w);
                        const Vec value = Gelu(u).value(u);
                        for (int c = 0; c < kChannels; ++c) sums[w][c] += value * unit.out[c];
                    }
                for (int w = 0; w < 2; ++w)
                    for (int c = 0; c < kChannels; ++c) out.lane[c][v + w] = sums[w][c];
            }
            out.store(y + start * kChannels, count);
        }
    });
}

// Gradients of `forward`; that of y is g * along[0] + y * along[1] + along[2], channel by channel,
// as BatchNorm's is. `d_first` is [hidden][inputs + 1], `d_second` [3][hidden], `d_bias` [3].
template <int inputs>
void backward(const float* x, const float* s, const float* y, const float* g, const float* along,
              i64 rows, i64 height, i64 width, i64 hidden, const float* first_weight,
              const float* second_weight, i64 threads, float* d_x, float* d_s, double* d_first,
              double* d_second, double* d_bias) {
    constexpr int varied = inputs > kChannels ? 2 * kChannels : kChannels;  // not the degree
    constexpr int row_sums = inputs + 1 + kChannels;
    const auto units = pack<inputs>(first_weight, second_weight, hidden);
    const auto degree_of = inputs > kChannels ? degrees(height, width) : std::vector<float>();
    const i64 pieces = (rows + kPiece - 1) / kPiece;
    const i64 stride = hidden * row_sums + kChannels;
    std::vector<double> partial(static_cast<std::size_t>(parts_of(pieces) * stride), 0.0);
    in_parts(pieces, threads, [&](i64 part, i64 from, i64 to) {
        double* sums = &partial[static_cast<std::size_t>(part * stride)];
        double* bias_sums = sums + hidden * row_sums;
        Inputs<inputs> in;
        Planes out, d_out;
        Vec d_in[varied][kVectors];
        for (i64 piece = from; piece < to; ++piece) {
            const i64 start = piece * kPiece;
            const i64 count = std::min(kPiece, rows - start);
            in.load(x, s, degree_of, start, count);
            out.load(y + start * kChannels, count);
            d_out.load(g + start * kChannels, count);
            for (int c = 0; c < kChannels; ++c) {
                float* plane = reinterpret_cast<float*>(d_out.lane[c]);
                const float* value = reinterpret_cast<const float*>(out.lane[c]);
                double total = 0.0;
                for (i64 n = 0; n < count; ++n) {
                    plane[n] = plane[n] * along[c] + value[n] * along[kChannels + c] +
                               along[2 * kChannels + c];
                    total += static_cast<double>(plane[n]);
                }
                bias_sums[c] += total;
            }
            std::memset(static_cast<void*>(d_in), 0, sizeof d_in);
            for (i64 j = 0; j < hidden; ++j) {
                const Unit<inputs>& unit = units[static_cast<std::size_t>(j)];
                Vec row[row_sums] = {};
                for (int v = 0; v < kVectors; ++v) {
                    const Vec u = in.hidden(unit, v);
                    const Gelu gelu(u);
                    const Vec value = gelu.value(u);
                    Vec d_value = d_out.lane[0][v] * unit.out[0];
                    for (int c = 1; c < kChannels; ++c)
                        d_value += d_out.lane[c][v] * unit.out[c];
                    const Vec d_u = d_value * gelu.slope(u);
                    for (int k = 0; k < inputs; ++k) row[k] += d_u * in.get(k, v);
                    row[inputs] += d_u;
                    for (int c = 0; c < kChannels; ++c)
                        row[inputs + 1 + c] += value * d_out.lane[c][v];
                    for (int k = 0; k < varied; ++k) d_in[k][v] += d_u * unit.in[k];
                }
                for (int k = 0; k < row_sums; ++k)
                    sums[j * row_sums + k] += static_cast<double>(sum(row[k]));
            }
            Planes* result = reinterpret_cast<Planes*>(d_in);
            result[0].store(d_x + start * kChannels, count);
            if constexpr (inputs > kChannels) result[1].store(d_s + start * kChannels, count);
        }
    });
    std::fill(d_first, d_first + hidden * (inputs + 1), 0.0);
    std::fill(d_second, d_second + hidden * kChannels, 0.0);
    std::fill(d_bias, d_bias + kChannels, 0.0);
    for (i64 part = 0; part < parts_of(pieces); ++part) {
        const double* sums = &partial[static_cast<std::size_t>(part * stride)];
        for (i64 j = 0; j < hidden; ++j, sums += row_sums) {
            // d_u was that of u / kScale, value that of GELU * kScale.
            for (int k = 0; k <= inputs; ++k) d_first[j * (inputs + 1) + k] += sums[k] * kScale;
            for (int c = 0; c < kChannels; ++c)
                d_second[c * hidden + j] += sums[inputs + 1 + c] / kScale;
        }
        for (int c = 0; c < kChannels; ++c) d_bias[c] += sums[c];
    }
}

}  // namespace

extern "C" {

int vig_lanes() { return LANES; }

// sums[0..3): of x; [3..12): of x x^T.
void vig_moments(const float* x, i64 rows, i64 threads, double* sums) {
    sum_rows<12>(rows, threads, sums, [&](i64 n, double* local) {
        const double v[kChannels] = {x[n * 3], x[n * 3 + 1], x[n * 3 + 2]};
        for (int a = 0; a < kChannels; ++a) {
            local[a] += v[a];
            for (int b = 0; b < kChannels; ++b) local[3 + a * 3 + b] += v[a] * v[b];
        }
    });
}

// sums[0..3): of g; [3..6): of g * y.
void vig_products(const float* g, const float* y, i64 rows, i64 threads, double* sums) {
    sum_rows<6>(rows, threads, sums, [&](i64 n, double* local) {
        for (int c = 0; c < kChannels; ++c) {
            const double value = g[n * 3 + c];
            local[c] += value;
            local[3 + c] += value * static_cast<double>(y[n * 3 + c]);
        }
    });
}

// out = the sum of x over each node's neighbours.
void vig_neighbour_sum(const float* x, i64 images, i64 height, i64 width, i64 threads, float* out) {
    const i64 length = width * kChannels;
    in_parts(images * height, threads, [&](i64, i64 first, i64 last) {
        std::vector<float> sums(static_cast<std::size_t>(length));
        for (i64 line = first; line < last; ++line)
            box_row(x + line / height * height * length, line % height, height, width, sums.data(),
                    out + line * length);
    });
}

// out = x + y * scale + shift, channel by channel.
void vig_residual(const float* x, const float* y, i64 rows, const float* scale, const float* shift,
                  i64 threads, float* out) {
    in_parts(rows, threads, [&](i64, i64 first, i64 last) {
        for (i64 n = first; n < last; ++n)
            for (int c = 0; c < kChannels; ++c)
                out[n * 3 + c] = x[n * 3 + c] + (y[n * 3 + c] * scale[c] + shift[c]);
    });
}

// d_x += g + x matrix + vector, and the sum of d_s over each node's neighbours where there is one.
void vig_finish(float* d_x, const float* d_s, const float* g, const float* x, const float* matrix,
                const float* vector, i64 images, i64 height, i64 width, i64 threads) {
    const i64 length = width * kChannels;
    in_parts(images * height, threads, [&](i64, i64 first, i64 last) {
        std::vector<float> sums(static_cast<std::size_t>(length));
        std::vector<float> box(static_cast<std::size_t>(length), 0.0f);
        for (i64 line = first; line < last; ++line) {
            if (d_s)
                box_row(d_s + line / height * height * length, line % height, height, width,
                        sums.data(), box.data());
            const i64 offset = line * length;
            for (i64 i = 0; i < length; i += kChannels)
                for (int c = 0; c < kChannels; ++c) {
                    const float* from = x + offset + i;
                    d_x[offset + i + c] += box[static_cast<std::size_t>(i + c)] +
                                           g[offset + i + c] + vector[c] + from[0] * matrix[c] +
                                           from[1] * matrix[3 + c] + from[2] * matrix[6 + c];
                }
        }
    });
}

void vig_forward(const float* x, const float* s, i64 rows, i64 height, i64 width, i64 hidden,
                 const float* first, const float* second, const float* bias, i64 threads,
                 float* y) {
    if (s)
        forward<7>(x, s, rows, height, width, hidden, first, second, bias, threads, y);
    else
        forward<3>(x, s, rows, height, width, hidden, first, second, bias, threads, y);
}

void vig_backward(const float* x, const float* s, const float* y, const float* g,
                  const float* along, i64 rows, i64 height, i64 width, i64 hidden,
                  const float* first, const float* second, i64 threads, float* d_x, float* d_s,
                  double* d_first, double* d_second, double* d_bias) {
    if (s)
        backward<7>(x, s, y, g, along, rows, height, width, hidden, first, second, threads, d_x,
                    d_s, d_first, d_second, d_bias);
    else
        backward<3>(x, s, y, g, along, rows, height, width, hidden, first, second, threads, d_x,
                    d_s, d_first, d_second, d_bias);
}
}
