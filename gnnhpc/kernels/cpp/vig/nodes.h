// The two-layer network a node that a ViG layer collapses to, float32.
//
// y[n] = GELU(z[n] A + a) B + b with z[n] three channels (FFN), or three channels, the sum of the
// three channels over the node's neighbours, and their number (Grapher). Hidden activations live
// in registers, in backward too. Arrays are row-major and contiguous.

#pragma once

#include "batch.h"
#include "vectors.h"

namespace {

constexpr i64 kGroup = kWide * LANES;
constexpr int kGroups = 6;  // of nodes a piece, whose numbers stay in the nearest cache
constexpr i64 kPiece = kGroups * kGroup;
// Sums of so many pieces, and of less than twice as many, are in single precision, lane by lane.
constexpr i64 kSingle = 16;

// A group's three channels from its rows, and back; of nodes past `count` they are zero.
void spread(const float* rows, i64 count, Nodes* channels) {
    for (int c = 0; c < kChannels; ++c) {
        float* lane = channels[c].lanes();
        if (count < kGroup) std::fill(lane, lane + kGroup, 0.0f);
        for (i64 n = 0; n < std::min(count, kGroup); ++n) lane[n] = rows[n * kChannels + c];
    }
}

void gather(const Nodes* channels, i64 count, float* rows) {
    for (int c = 0; c < kChannels; ++c) {
        const float* lane = channels[c].lanes();
        for (i64 n = 0; n < std::min(count, kGroup); ++n) rows[n * kChannels + c] = lane[n];
    }
}

// Weights of one hidden unit side by side: inputs, the constant, outputs.
template <int inputs>
struct Unit {
    float in[inputs], constant, out[kChannels];
};

// `first` is [hidden][inputs + 1], `second` [3][hidden]. Scaled as Gelu wants it.
template <int inputs>
std::vector<Unit<inputs>> pack(const double* first, const float* second, i64 hidden) {
    std::vector<Unit<inputs>> units(hidden);
    for (i64 j = 0; j < hidden; ++j) {
        Unit<inputs>& unit = units[j];
        const double* row = first + j * (inputs + 1);
        for (int k = 0; k < inputs; ++k) unit.in[k] = static_cast<float>(row[k] * kScale);
        unit.constant = static_cast<float>(row[inputs] * kScale);
        for (int c = 0; c < kChannels; ++c) unit.out[c] = second[c * hidden + j] / kScale;
    }
    return units;
}

// The inputs of hidden units of a group of nodes: channels, for the Grapher also the sums of the
// neighbours' channels and how many they are.
template <int inputs>
struct Features {
    Nodes in[inputs];

    void load(const float* x, const float* s, const Floats& degree_of, i64 first, i64 count) {
        spread(x + first * kChannels, count, in);
        if constexpr (inputs > kChannels) {
            spread(s + first * kChannels, count, in + kChannels);
            float* degree = in[2 * kChannels].lanes();
            std::size_t node = first % degree_of.size();
            for (i64 n = 0; n < kGroup; ++n) {
                degree[n] = n < count ? degree_of[node] : 0.0f;
                if (++node == degree_of.size()) node = 0;
            }
        }
    }

    INLINE Nodes to(const Unit<inputs>& unit) const {
        Nodes u = in[0] * unit.in[0] + unit.constant;
        for (int k = 1; k < inputs; ++k) u = in[k] * unit.in[k] + u;
        return u;
    }
};

// `s` holds the sums over the neighbours; `second` is [3][hidden].
template <int inputs>
void forward(const Batch& batch, i64 hidden, const float* x, const float* s, const double* first,
             const float* second, const float* second_bias, float* y) {
    const auto units = pack<inputs>(first, second, hidden);
    const Floats degree_of = inputs > kChannels ? degrees(batch) : Floats();
    const i64 rows = batch.rows(), groups = (rows + kGroup - 1) / kGroup;
    in_parts(parts_of(groups, 32, 4), groups, batch.threads, [&](i64, i64 from, i64 to) {
        Features<inputs> features;
        for (i64 group = from; group < to; ++group) {
            const i64 start = group * kGroup;
            features.load(x, s, degree_of, start, rows - start);
            Nodes out[kChannels] = {Nodes(second_bias[0]), Nodes(second_bias[1]),
                                    Nodes(second_bias[2])};
            for (const Unit<inputs>& unit : units) {
                const Nodes value = Gelu(features.to(unit)).value();
                for (int c = 0; c < kChannels; ++c) out[c] = value * unit.out[c] + out[c];
            }
            gather(out, rows - start, y + start * kChannels);
        }
    });
}

// Sums over a part's nodes: lane by lane for each hidden unit, and of the outputs' gradients.
template <class Row>
struct Sums {
    std::vector<Row> lanes;
    double bias[kChannels];

    // What the lanes hold is left: whoever writes them first does not read them.
    void begin(std::size_t hidden) {
        lanes.resize(hidden);
        std::fill(bias, bias + kChannels, 0.0);
    }
};

// Gradients of `forward`; that of y is g * along[0] + y * along[1] + along[2], channel by channel,
// as BatchNorm's is. `d_first` is [hidden][inputs + 1], `d_second` [3][hidden], `d_bias` [3].
template <int inputs>
void backward(const Batch& batch, i64 hidden, const float* x, const float* s, const double* first,
              const float* second, const float* y, const float* g, const float* along, float* d_x,
              float* d_s, double* d_first, double* d_second, double* d_bias) {
    constexpr int varied = inputs > kChannels ? 2 * kChannels : kChannels;  // not the degree
    constexpr int row_sums = inputs + 1 + kChannels;
    struct Cell {
        Features<inputs> features;
        Nodes d_out[kChannels], d_in[varied];
    };
    struct Row {
        Vec at[row_sums];

        INLINE void add(const Row& other) {
            for (int i = 0; i < row_sums; ++i) at[i] += other.at[i];
        }
    };
    const auto units = pack<inputs>(first, second, hidden);
    const Floats degree_of = inputs > kChannels ? degrees(batch) : Floats();
    const i64 rows = batch.rows(), pieces = (rows + kPiece - 1) / kPiece;
    const bool few = pieces < 2 * kSingle;
    const i64 parts = std::max<i64>(std::min<i64>(pieces, 4), pieces / kSingle);
    static thread_local std::vector<Row> kept;
    std::vector<Row>& single = kept;  // of all parts, where they are few: this thread's
    if (few) single.resize(hidden);
    // Parts that follow each other are added as their last nodes are done, in the same order.
    const bool at_once = few && batch.threads == 1;
    Doubles sums(hidden * row_sums, 0.0);
    std::fill(d_bias, d_bias + kChannels, 0.0);
    const auto part = [&](i64 from, i64 to) -> const Sums<Row>& {
        static thread_local Sums<Row> found;
        found.begin(hidden);
        Cell cells[kGroups];
        for (i64 piece = from; piece < to; ++piece) {
            // The last piece may have less.
            const i64 left = (rows - piece * kPiece + kGroup - 1) / kGroup;
            const int filled = static_cast<int>(std::min<i64>(kGroups, left));
            for (int i = 0; i < filled; ++i) {
                const i64 start = piece * kPiece + i * kGroup, count = rows - start;
                Cell& cell = cells[i];
                cell.features.load(x, s, degree_of, start, count);
                float d_y[kGroup * kChannels];
                for (i64 n = 0; n < std::min(count, kGroup); ++n)
                    for (int c = 0; c < kChannels; ++c) {
                        const i64 at = (start + n) * kChannels + c;
                        d_y[n * kChannels + c] =
                            g[at] * along[c] + y[at] * along[3 + c] + along[6 + c];
                        found.bias[c] += static_cast<double>(d_y[n * kChannels + c]);
                    }
                spread(d_y, count, cell.d_out);
                std::fill(cell.d_in, cell.d_in + varied, Nodes(0.0f));
            }
            const bool begins = piece == from, ends = at_once && piece + 1 == to;
            Row *const lanes = found.lanes.data(), *const into = ends ? single.data() : lanes;
            const Row zero = {};
            const Row* before = begins ? &zero : lanes;
            const i64 stride = begins ? 0 : 1;
            for (i64 j = 0; j < hidden; ++j) {
                const Unit<inputs>& unit = units[j];
                Row row = before[j * stride];
                for (int i = 0; i < filled; ++i) {
                    Cell& cell = cells[i];
                    const Gelu gelu(cell.features.to(unit));
                    Nodes d_value = cell.d_out[0] * unit.out[0];
                    for (int c = 1; c < kChannels; ++c)
                        d_value = cell.d_out[c] * unit.out[c] + d_value;
                    const Nodes value = gelu.value(), d_u = d_value * gelu.slope();
                    for (int w = 0; w < kWide; ++w) {
                        for (int k = 0; k < inputs; ++k)
                            row.at[k] += d_u.at[w] * cell.features.in[k].at[w];
                        row.at[inputs] += d_u.at[w];
                        for (int c = 0; c < kChannels; ++c)
                            row.at[inputs + 1 + c] += value.at[w] * cell.d_out[c].at[w];
                    }
                    for (int k = 0; k < varied; ++k)
                        cell.d_in[k] = d_u * unit.in[k] + cell.d_in[k];
                }
                if (ends && from > 0) row.add(into[j]);
                into[j] = row;
            }
            for (int i = 0; i < filled; ++i) {
                const i64 start = piece * kPiece + i * kGroup;
                gather(cells[i].d_in, rows - start, d_x + start * kChannels);
                if constexpr (inputs > kChannels)
                    gather(cells[i].d_in + kChannels, rows - start, d_s + start * kChannels);
            }
        }
        return found;
    };
    const auto add_up = [&](const std::vector<Row>& lanes) {
        double* total = sums.data();
        for (const Row& row : lanes)
            for (const Vec& of : row.at) *total++ += sum(of);
    };
    bool first_part = true;
    add_parts(parts, pieces, batch.threads, part, [&](const Sums<Row>& found) {
        for (int c = 0; c < kChannels; ++c) d_bias[c] += found.bias[c];
        if (!few) return add_up(found.lanes);
        if (at_once) return;
        if (first_part)
            single = found.lanes;
        else
            for (std::size_t j = 0; j < single.size(); ++j) single[j].add(found.lanes[j]);
        first_part = false;
    });
    if (few && parts > 0) add_up(single);
    const double* of = sums.data();
    for (i64 j = 0; j < hidden; ++j, of += row_sums) {
        // d_u was that of u / kScale, value that of GELU * kScale.
        for (int k = 0; k <= inputs; ++k) d_first[j * (inputs + 1) + k] = of[k] * kScale;
        for (int c = 0; c < kChannels; ++c) d_second[c * hidden + j] = of[inputs + 1 + c] / kScale;
    }
}

}  // namespace
