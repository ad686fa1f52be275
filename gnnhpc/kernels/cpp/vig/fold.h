// The algebra on parameters and statistics that folds a ViG layer into a small network for each node,
// in double; `gnnhpc.kernels.vig.vig_fold` explains it.

#pragma once

#include <cmath>

#include "conv.h"
#include "nodes.h"

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
        const double self_constant = uncentred(own, own[3], state.mean);
        const double row[8] = {own[0], own[1], own[2], neighbours[0], neighbours[1], neighbours[2],
                               uncentred(neighbours, neighbours[3], state.mean),
                               self_constant + of.conv_bias[j]};
        std::copy(row, row + 8, state.first + j * 8);
    }
}

// All that comes before the GELU: an FFN has no convolution.
void fold_first(i64 hidden, const Weights<const float>& of, bool by_batch,
                const State<double>& state) {
    if (of.root) return fold_conv(hidden, of, by_batch, state);
    for (i64 j = 0; j < hidden; ++j) {
        double* row = state.first + j * 4;
        for (int k = 0; k < 4; ++k) row[k] = state.folded[k * hidden + j];
        row[3] = uncentred(row, row[3], state.mean);
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

// The same of `fold_first`.
void unfold_first(i64 hidden, const Weights<const float>& of, const State<const double>& state,
                  const double* d_first, double* d_folded, const Gradients& d) {
    if (of.root) return unfold_conv(hidden, of, state, d_first, d_folded, d);
    for (i64 j = 0; j < hidden; ++j) {
        const double *row = d_first + j * 4, d_constant = row[3];
        for (int k = 0; k < 3; ++k)
            d_folded[k * hidden + j] = row[k] - state.mean[k] * d_constant;
        d_folded[3 * hidden + j] = d_constant;
    }
}

// Of the Linear and its BatchNorm, and of x through the batch's mean and covariance:
// x matrix + vector.
void unfold_linear(i64 hidden, i64 rows, const Weights<const float>& of, double eps,
                   const State<const double>& state, const double* d_folded,
                   const Gradients& d, float* matrix, float* vector) {
    const double *m = state.mean, *cov = state.covariance;
    double d_mean[3] = {}, d_cov[9] = {};
    for (i64 j = 0; j < hidden; ++j) {
        const double w[3] = {of.w1[j * 3], of.w1[j * 3 + 1], of.w1[j * 3 + 2]};
        const double inverse = 1.0 / std::sqrt(state.variance1[j] + eps);
        const double scale = of.gamma1[j] * inverse;
        const double d_constant = d_folded[3 * hidden + j], d_centred = scale * d_constant;
        double d_scale = 0.0, d_w[3];
        for (int k = 0; k < 3; ++k) {
            d_scale += d_folded[k * hidden + j] * w[k];
            d_w[k] = d_folded[k * hidden + j] * scale;
        }
        d.add(d.gamma1 + j, d_scale * inverse);
        d.add(d.beta1 + j, d_constant);
        // BatchNorm takes the bias b1 away again: its gradient is 0.
        const double d_variance = -0.5 * d_scale * scale * inverse * inverse;
        for (int k = 0; k < 3; ++k) {
            d_mean[k] -= w[k] * d_centred;
            for (int l = 0; l < 3; ++l) {
                d_w[k] += 2.0 * d_variance * cov[k * 3 + l] * w[l];
                d_cov[k * 3 + l] += d_variance * w[k] * w[l];
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
void unfold_norm(const Batch& batch, const float* y, const float* g,
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
        const double slope = -scale * inverse * d_gamma / count;
        const double shift = -scale * sums[c] / count - slope * state.mean2[c];
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

}  // namespace
