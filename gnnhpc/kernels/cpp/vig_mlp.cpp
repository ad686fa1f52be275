// A ViG layer, Grapher or FFN, forward and backward: `gnnhpc.kernels.torch.torch_vig` in C++.
//
// Here is the algebra on parameters and statistics that folds a layer into a small network a node
// (`gnnhpc.kernels.torch.vig_fold` explains it), in double; vig_conv.h has what is done a weight of the
// convolution, vig_nodes.h what is done a node.

#include <cmath>
#include <memory>

#include "openmp.h"
#include "vig_conv.h"
#include "vig_nodes.h"
#include "vig_readout.h"

namespace {

// A layer's parameters, or their gradients, in the order of torch_vig.Weights.
template <class Number>
struct Weights {
    Number *w1, *b1, *gamma1, *beta1, *root, *around, *conv_bias, *w2, *b2, *gamma2, *beta2;

    explicit Weights(Number* const* p)
        : w1(p[0]), b1(p[1]), gamma1(p[2]), beta1(p[3]), root(p[4]), around(p[5]),
          conv_bias(p[6]), w2(p[7]), b2(p[8]), gamma2(p[9]), beta2(p[10]) {}
};

// Gradients of a layer's parameters, that a micro-batch's are added to.
struct Gradients : Weights<float> {
    using Weights::Weights;

    void clear(i64 hidden) const {
        for (float* at : {w1, w2}) std::fill(at, at + hidden * kChannels, 0.0f);
        for (float* at : {b1, gamma1, beta1}) std::fill(at, at + hidden, 0.0f);
        for (float* at : {b2, gamma2, beta2}) std::fill(at, at + kChannels, 0.0f);
        if (!root) return;
        for (float* at : {root, around}) std::fill(at, at + hidden * hidden, 0.0f);
        std::fill(conv_bias, conv_bias + hidden, 0.0f);
    }

    static INLINE void add(float* at, double value) { *at += static_cast<float>(value); }
};

// What forward leaves for backward. `folded` is [4][hidden], `first` [hidden][inputs + 1].
template <class Number>
struct State {
    Number *mean1, *variance1, *mean2, *variance2, *mean, *covariance, *folded, *first;

    State(Number* at, i64 hidden)
        : mean1(at), variance1(mean1 + hidden), mean2(variance1 + hidden),
          variance2(mean2 + kChannels), mean(variance2 + kChannels), covariance(mean + kChannels),
          folded(covariance + kChannels * kChannels), first(folded + 4 * hidden) {}

    static i64 length(i64 hidden, i64 inputs) {
        return hidden * (2 + 4 + inputs + 1) + kChannels * (3 + kChannels);
    }
};

constexpr int kPlain = 3, kConv = 7;  // inputs of a hidden unit in FFN and Grapher

// Mean and biased covariance of x, through the sums of x and of x x^T.
void moments(const Batch& batch, const float* x, double* mean, double* covariance) {
    double sums[12];
    sum_rows<12>(batch, sums, [&](i64 n, double* local) {
        const double v[kChannels] = {x[n * 3], x[n * 3 + 1], x[n * 3 + 2]};
        for (int a = 0; a < 3; ++a) {
            local[a] += v[a];
            for (int b = 0; b < 3; ++b) local[3 + a * 3 + b] += v[a] * v[b];
        }
    });
    const double count = static_cast<double>(batch.rows());
    for (int a = 0; a < 3; ++a) mean[a] = sums[a] / count;
    for (int i = 0; i < 9; ++i) covariance[i] = sums[3 + i] / count - mean[i / 3] * mean[i % 3];
}

// Mean and biased variance of w1 x + b1.
void hidden_moments(i64 hidden, const Weights<const float>& of, const State<double>& state) {
    const double *m = state.mean, *cov = state.covariance;
    for (i64 j = 0; j < hidden; ++j) {
        const double w[3] = {of.w1[j * 3], of.w1[j * 3 + 1], of.w1[j * 3 + 2]};
        double variance = 0.0;
        for (int i = 0; i < 9; ++i) variance += w[i / 3] * cov[i] * w[i % 3];
        state.mean1[j] = w[0] * m[0] + w[1] * m[1] + w[2] * m[2] + of.b1[j];
        state.variance1[j] = std::max(variance, 0.0);
    }
}

// Linear and BatchNorm as one affine map of x - mean: three weights and a constant, which is the
// BatchNorm's own bias where its mean is that of the batch.
void fold_linear(i64 hidden, const Weights<const float>& of, bool by_batch, double eps,
                 const State<double>& state) {
    for (i64 j = 0; j < hidden; ++j) {
        const double scale = of.gamma1[j] / std::sqrt(state.variance1[j] + eps);
        // Times zero, and not zero: a bias that is no number has to reach the loss.
        const double shift = by_batch ? 0.0 * static_cast<double>(of.b1[j])
                                      : scale * (of.b1[j] - state.mean1[j]);
        for (int k = 0; k < 3; ++k) state.folded[k * hidden + j] = scale * of.w1[j * 3 + k];
        state.folded[3 * hidden + j] = of.beta1[j] + shift;
    }
}

// The constant for x itself, of weights and a constant for x - mean.
double uncentred(const double* weights, double constant, const double* mean) {
    return constant - (mean[0] * weights[0] + mean[1] * weights[1] + mean[2] * weights[2]);
}

// By the batch single precision does: the constant for x comes of the very weights that multiply
// x, so what they are off by counts for x - mean alone, however large the mean. A BatchNorm's
// running mean is not that of x, and all of x counts.
void fold_conv(i64 hidden, const Weights<const float>& of, bool by_batch,
               const State<double>& state) {
    const auto columns = by_batch ? columns_of(hidden, state.folded) : std::vector<Columns>();
    for (i64 j = 0; j < hidden; ++j) {
        const float *root = of.root + j * hidden, *around = of.around + j * hidden;
        double own[8], *const neighbours = own + 4;
        if (by_batch)
            sum_row(hidden, root, around, columns, own);
        else
            sum_row(hidden, root, around, state.folded, own);
        const double own_constant = uncentred(own, own[3], state.mean);
        const double row[8] = {own[0], own[1], own[2], neighbours[0], neighbours[1], neighbours[2],
                               uncentred(neighbours, neighbours[3], state.mean),
                               own_constant + of.conv_bias[j]};
        std::copy(row, row + 8, state.first + j * 8);
    }
}

// Of the folded Linear and of the convolution's parameters; `d_folded` is [4][hidden], as `folded`
// for x - mean: sums that nearly cancel are subtracted in double, before they are multiplied.
void unfold_conv(i64 hidden, const Weights<const float>& of, const State<const double>& state,
                 const double* d_first, double* d_folded, const Gradients& d) {
    std::vector<RowGradients> rows;
    for (i64 j = 0; j < hidden; ++j) {
        rows.emplace_back(d_first + j * 8, state.mean);
        d.add(d.conv_bias + j, d_first[j * 8 + 7]);
    }
    std::fill(d_folded, d_folded + 4 * hidden, 0.0);
    unfold_rows({of.root, of.around, d.root, d.around, hidden}, rows,
                columns_of(hidden, state.folded), d_folded);
}

// Of the Linear and its BatchNorm; where that went by the batch, x's gradient through its mean and
// covariance too: x matrix + vector.
void unfold_linear(i64 hidden, i64 rows, bool by_batch, const Weights<const float>& of, double eps,
                   const State<const double>& state, const double* d_folded,
                   const Gradients& d, float* matrix, float* vector) {
    const double *m = state.mean, *cov = state.covariance;
    double d_mean[3] = {}, d_cov[9] = {};
    for (i64 j = 0; j < hidden; ++j) {
        const double w[3] = {of.w1[j * 3], of.w1[j * 3 + 1], of.w1[j * 3 + 2]};
        const double inverse = 1.0 / std::sqrt(state.variance1[j] + eps);
        const double scale = of.gamma1[j] * inverse;
        const double d_constant = d_folded[3 * hidden + j], d_centred = scale * d_constant;
        double d_scale = by_batch ? 0.0 : d_constant * (of.b1[j] - state.mean1[j]), d_w[3];
        for (int k = 0; k < 3; ++k) {
            d_scale += d_folded[k * hidden + j] * w[k];
            d_w[k] = d_folded[k * hidden + j] * scale;
        }
        d.add(d.gamma1 + j, d_scale * inverse);
        d.add(d.beta1 + j, d_constant);
        d.add(d.b1 + j, by_batch ? 0.0 : d_centred);
        if (by_batch) {
            const double d_variance = -0.5 * d_scale * scale * inverse * inverse;
            for (int k = 0; k < 3; ++k) {
                d_mean[k] -= w[k] * d_centred;
                for (int l = 0; l < 3; ++l) {
                    d_w[k] += 2.0 * d_variance * cov[k * 3 + l] * w[l];
                    d_cov[k * 3 + l] += d_variance * w[k] * w[l];
                }
            }
        }
        for (int k = 0; k < 3; ++k) d.add(d.w1 + j * 3 + k, d_w[k]);
    }
    const double count = static_cast<double>(rows);
    for (int k = 0; k < 3; ++k) {
        double at_mean = 0.0;
        for (int l = 0; l < 3; ++l) {
            matrix[l * 3 + k] = static_cast<float>(2.0 * d_cov[l * 3 + k] / count);
            at_mean += m[l] * 2.0 * d_cov[l * 3 + k] / count;
        }
        vector[k] = static_cast<float>(d_mean[k] / count - at_mean);
    }
}

// What BatchNorm of y makes of the gradient g of its output, for `backward`'s `along`.
void unfold_norm(const Batch& batch, bool by_batch, const float* y, const float* g,
                 const Weights<const float>& of, double eps, const State<const double>& state,
                 const Gradients& d, float* along) {
    double sums[6];  // of g, of g y
    sum_rows<6>(batch, sums, [&](i64 n, double* local) {
        for (int c = 0; c < 3; ++c) {
            const double value = g[n * 3 + c];
            local[c] += value;
            local[3 + c] += value * static_cast<double>(y[n * 3 + c]);
        }
    });
    const double count = static_cast<double>(batch.rows());
    for (int c = 0; c < 3; ++c) {
        const double inverse = 1.0 / std::sqrt(state.variance2[c] + eps);
        const double scale = of.gamma2[c] * inverse;
        const double d_gamma = inverse * (sums[3 + c] - state.mean2[c] * sums[c]);
        const double slope = by_batch ? -scale * inverse * d_gamma / count : 0.0;
        const double shift = by_batch ? -scale * sums[c] / count - slope * state.mean2[c] : 0.0;
        d.add(d.gamma2 + c, d_gamma);
        d.add(d.beta2 + c, sums[c]);
        along[c] = static_cast<float>(scale);
        along[3 + c] = static_cast<float>(slope);
        along[6 + c] = static_cast<float>(shift);
    }
}

// A BatchNorm's running statistics, moved by a batch's: torch's lerp of the mean and of the unbiased
// variance.
void move(i64 channels, i64 rows, const double* mean, const double* variance, double momentum,
          float* running_mean, float* running_variance) {
    const double unbiased = static_cast<double>(rows) / static_cast<double>(rows - 1);
    const float step = static_cast<float>(momentum);
    for (i64 c = 0; c < channels; ++c) {
        running_mean[c] += step * (static_cast<float>(mean[c]) - running_mean[c]);
        const float value = static_cast<float>(variance[c] * unbiased);
        running_variance[c] += step * (value - running_variance[c]);
    }
}

std::unique_ptr<float[]> rows_of_floats(const Batch& batch) {
    return std::unique_ptr<float[]>(new float[size(batch.rows() * kChannels)]);
}

void copy_line(const Batch& batch, i64 line, const float* from, float* to) {
    const i64 length = batch.width * kChannels;
    std::copy(from, from + length, to + line * length);
}

}  // namespace

extern "C" {

int vig_lanes() { return LANES; }

i64 vig_state_length(i64 hidden, i64 conv) {
    return State<double>::length(hidden, conv ? kConv : kPlain);
}

// `sizes`: images, height, width, hidden, threads. `running`: means and variances of both
// BatchNorms to go by, or null to go by the batch. `moved`: the same to be moved by the batch's, by
// `momentum` each, or null for none; `batches` count how often they were. The convolution's weights
// are null in an FFN. y [rows][3] is the update before its BatchNorm, out the layer's output.
void vig_forward(const i64* sizes, const float* x, const float* const* weights,
                 const float* const* running, const double* eps, float* const* moved,
                 i64* const* batches, const double* momentum, float* y, float* out,
                 double* state_at) {
    const Batch batch = {sizes[0], sizes[1], sizes[2], sizes[4]};
    const i64 hidden = sizes[3];
    const Weights<const float> of(weights);
    const State<double> state(state_at, hidden);
    if (running) {
        std::copy(running[0], running[0] + hidden, state.mean1);
        std::copy(running[1], running[1] + hidden, state.variance1);
        std::copy(running[2], running[2] + 3, state.mean2);
        std::copy(running[3], running[3] + 3, state.variance2);
        std::fill(state.mean, state.folded, 0.0);
    } else {
        moments(batch, x, state.mean, state.covariance);
        hidden_moments(hidden, of, state);
    }
    fold_linear(hidden, of, !running, eps[0], state);
    if (of.root) {
        fold_conv(hidden, of, !running, state);
        const auto sums = rows_of_floats(batch);
        neighbour_sums(x, batch, [&](i64 line, const float* from) {
            copy_line(batch, line, from, sums.get());
        });
        forward<kConv>(batch, hidden, x, sums.get(), state.first, of.w2, of.b2, y);
    } else {
        for (i64 j = 0; j < hidden; ++j) {
            double* row = state.first + j * 4;
            for (int k = 0; k < 4; ++k) row[k] = state.folded[k * hidden + j];
            row[3] = uncentred(row, row[3], state.mean);
        }
        forward<kPlain>(batch, hidden, x, nullptr, state.first, of.w2, of.b2, y);
    }
    if (!running) {
        double covariance[9];
        moments(batch, y, state.mean2, covariance);
        for (int c = 0; c < 3; ++c) state.variance2[c] = std::max(covariance[c * 4], 0.0);
    }
    if (moved) {
        move(hidden, batch.rows(), state.mean1, state.variance1, momentum[0], moved[0], moved[1]);
        move(3, batch.rows(), state.mean2, state.variance2, momentum[1], moved[2], moved[3]);
        for (int norm = 0; norm < 2; ++norm) ++*batches[norm];
    }
    float scale[3], shift[3];
    for (int c = 0; c < 3; ++c) {
        const double exact = of.gamma2[c] / std::sqrt(state.variance2[c] + eps[1]);
        scale[c] = static_cast<float>(exact);
        shift[c] = static_cast<float>(of.beta2[c] - exact * state.mean2[c]);
    }
    over_rows(batch, [&](i64 first, i64 last) {
        for (i64 n = first; n < last; ++n)
            for (int c = 0; c < 3; ++c)
                out[n * 3 + c] = x[n * 3 + c] + (y[n * 3 + c] * scale[c] + shift[c]);
    });
}

// `by_batch` as forward was. Gradients of the weights in their order, `added` to what is there or
// in its place; d_x null if not wanted.
void vig_backward(i64 by_batch, i64 added, const i64* sizes, const float* x, const float* y,
                  const float* g, const float* const* weights, const double* eps,
                  const double* state_at, float* d_x, float* const* d_weights) {
    const Batch batch = {sizes[0], sizes[1], sizes[2], sizes[4]};
    const i64 hidden = sizes[3], length = batch.width * kChannels;
    const Weights<const float> of(weights);
    const Gradients d(d_weights);
    if (!added) d.clear(hidden);
    const State<const double> state(state_at, hidden);
    const int inputs = of.root ? kConv : kPlain;

    float along[9], matrix[9], vector[3];
    unfold_norm(batch, by_batch, y, g, of, eps[1], state, d, along);
    Doubles d_first(size(hidden * (inputs + 1))), d_second(size(hidden * 3)), d_bias(3);
    Doubles d_folded(size(hidden * 4));
    const auto unwanted = d_x ? nullptr : rows_of_floats(batch);
    float* d_own = d_x ? d_x : unwanted.get();
    const auto d_sums = of.root ? rows_of_floats(batch) : nullptr;
    if (of.root) {
        const auto sums = rows_of_floats(batch);
        neighbour_sums(x, batch, [&](i64 line, const float* from) {
            copy_line(batch, line, from, sums.get());
        });
        backward<kConv>(batch, hidden, x, sums.get(), state.first, of.w2, y, g, along, d_own,
                        d_sums.get(), d_first.data(), d_second.data(), d_bias.data());
        unfold_conv(hidden, of, state, d_first.data(), d_folded.data(), d);
    } else {
        backward<kPlain>(batch, hidden, x, nullptr, state.first, of.w2, y, g, along, d_own, nullptr,
                         d_first.data(), d_second.data(), d_bias.data());
        for (i64 j = 0; j < hidden; ++j) {
            const double *row = &d_first[size(j * 4)], d_constant = row[3];
            for (int k = 0; k < 3; ++k)
                d_folded[size(k * hidden + j)] = row[k] - state.mean[k] * d_constant;
            d_folded[size(3 * hidden + j)] = d_constant;
        }
    }
    for (i64 i = 0; i < hidden * 3; ++i) d.add(d.w2 + i, d_second[size(i)]);
    for (i64 c = 0; c < 3; ++c) d.add(d.b2 + c, d_bias[size(c)]);
    unfold_linear(hidden, batch.rows(), by_batch, of, eps[0], state, d_folded.data(), d, matrix,
                  vector);
    if (!d_x) return;

    // The residual's share, and the statistics'; then what neighbours took from each node.
    over_rows(batch, [&](i64 first, i64 last) {
        for (i64 n = first; n < last; ++n)
            for (int c = 0; c < 3; ++c)
                d_x[n * 3 + c] += g[n * 3 + c] + vector[c] + x[n * 3] * matrix[c] +
                                  x[n * 3 + 1] * matrix[3 + c] + x[n * 3 + 2] * matrix[6 + c];
    });
    if (of.root)
        neighbour_sums(d_sums.get(), batch, [&](i64 line, const float* sums) {
            for (i64 i = 0; i < length; ++i) d_x[line * length + i] += sums[i];
        });
}

// The readout, of x [images][nodes][3]. `sizes`: images, nodes, hidden, classes, threads. Weights
// are fc1's [hidden][3] and [hidden], fc2's [classes][hidden] and [classes]. `pooled` [images][3]
// is left for backward, logits are [images][classes].
void vig_readout_forward(const i64* sizes, const float* x, const float* const* weights,
                         float* pooled, float* logits) {
    const Readout of(sizes, weights);
    of.pool(x, pooled);
    of.forward(pooled, logits);
}

// Gradients of the weights, from that of the logits; d_x [images][nodes][3], null if not wanted.
void vig_readout_backward(const i64* sizes, const float* pooled, const float* g,
                          const float* const* weights, float* d_x, float* const* d_weights) {
    const Readout of(sizes, weights);
    const Doubles d_pooled = of.backward(pooled, g, d_weights);
    if (d_x) of.spread_to_nodes(d_pooled, d_x);
}

// Layers one after the other, each as `vig_forward` by the batch's statistics, which `moved`, or null,
// has moved. Of each layer: `shapes` height, width, hidden; 11 weights; 2 eps; 4 statistics, 2 counts
// and 2 momentums; its y in `ys`, its output in `outs` but the last one's, which is in `out`; its state.
void vig_layers_forward(i64 layers, i64 images, i64 threads, const i64* shapes, const float* x,
                        const float* const* weights, const double* eps, float* const* moved,
                        i64* const* batches, const double* momentum, float* ys, float* outs,
                        float* out, double* states) {
    for (i64 i = 0; i < layers; ++i) {
        const i64* shape = shapes + i * 3;
        const i64 sizes[] = {images, shape[0], shape[1], shape[2], threads};
        const i64 length = images * shape[0] * shape[1] * kChannels;
        float* at = i + 1 < layers ? outs + i * length : out;
        vig_forward(sizes, x, weights + i * 11, nullptr, eps + i * 2,
                    moved ? moved + i * 4 : nullptr, moved ? batches + i * 2 : nullptr,
                    moved ? momentum + i * 2 : nullptr, ys + i * length, at, states);
        x = at;
        states += vig_state_length(shape[2], weights[i * 11 + 4] != nullptr);
    }
}

// Back through the same; gradients of weights are added. g is that of `out`; `states` begins with the
// first layer's.
void vig_layers_backward(i64 layers, i64 images, i64 threads, const i64* shapes, const float* x,
                         const float* ys, const float* outs, const float* g,
                         const float* const* weights, const double* eps, const double* states,
                         float* d_x, float* const* gradients) {
    const i64 nodes = shapes[0] * shapes[1], length = images * nodes * kChannels;
    const auto between = std::unique_ptr<float[]>(new float[size(2 * length)]);
    const auto output_of = [&](i64 layer) { return between.get() + (layer % 2) * length; };
    for (i64 i = 0; i < layers; ++i)
        states += vig_state_length(shapes[i * 3 + 2], weights[i * 11 + 4] != nullptr);
    for (i64 i = layers - 1; i >= 0; --i) {
        const i64* shape = shapes + i * 3;
        const i64 sizes[] = {images, shape[0], shape[1], shape[2], threads};
        states -= vig_state_length(shape[2], weights[i * 11 + 4] != nullptr);
        float* d_input = i > 0 ? output_of(i - 1) : d_x;
        vig_backward(1, 1, sizes, i > 0 ? outs + (i - 1) * length : x, ys + i * length, g,
                     weights + i * 11, eps + i * 2, states, d_input, gradients + i * 11);
        g = d_input;
    }
}
}
