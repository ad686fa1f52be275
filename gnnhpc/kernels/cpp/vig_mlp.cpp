// A ViG layer, Grapher or FFN, forward and backward: `gnnhpc.kernels.vig.torch_vig` in C++.
//
// vig/fold.h has what is computed once a layer, vig/conv.h what is computed once a weight of the
// convolution, vig/nodes.h what is computed for each node, vig/batch.h passes over all of them.

#include "export.h"
#include "vig/fold.h"

namespace {

i64 state_length(i64 hidden, bool conv) {
    return State<double>::length(hidden, conv ? kConv : kPlain);
}

// `running`: means and variances of both BatchNorms to go by, or null to go by the batch. `moved`: the
// same to be moved by the batch's, by `momentum` each, or null for none; `batches` count how often they
// were. The convolution's weights are null in an FFN. y [rows][3] is the update before its BatchNorm,
// out the layer's output.
void forward_layer(const Batch& batch, i64 hidden, const float* x, const float* const* weights,
                   const float* const* running, const double* eps, float* const* moved,
                   i64* const* batches, const double* momentum, float* y, float* out,
                   double* state_at) {
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
    fold_first(hidden, of, !running, state);
    const Rows sums = of.root ? neighbour_sums(x, batch) : nullptr;
    const auto network = of.root ? forward<kConv> : forward<kPlain>;
    network(batch, hidden, x, sums.get(), state.first, of.w2, of.b2, y);
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

// Of a forward that went by the batch. Gradients of the weights in their order, added to what is
// there; d_x null if not wanted.
void backward_layer(const Batch& batch, i64 hidden, const float* x, const float* y, const float* g,
                    const float* const* weights, const double* eps, const double* state_at,
                    float* d_x, float* const* d_weights) {
    const i64 length = batch.width * kChannels;
    const Weights<const float> of(weights);
    const Gradients d(d_weights);
    const State<const double> state(state_at, hidden);
    const int inputs = of.root ? kConv : kPlain;

    float along[9], matrix[9], vector[3];
    unfold_norm(batch, y, g, of, eps[1], state, d, along);
    Doubles d_first(hidden * (inputs + 1)), d_second(hidden * 3), d_bias(3), d_folded(hidden * 4);
    const Rows unwanted = d_x ? nullptr : make_rows(batch);
    float* d_own = d_x ? d_x : unwanted.get();
    const Rows sums = of.root ? neighbour_sums(x, batch) : nullptr;
    const Rows d_sums = of.root ? make_rows(batch) : nullptr;
    const auto network = of.root ? backward<kConv> : backward<kPlain>;
    network(batch, hidden, x, sums.get(), state.first, of.w2, y, g, along, d_own, d_sums.get(),
            d_first.data(), d_second.data(), d_bias.data());
    unfold_first(hidden, of, state, d_first.data(), d_folded.data(), d);
    for (i64 i = 0; i < hidden * 3; ++i) d.add(d.w2 + i, d_second[i]);
    for (i64 c = 0; c < 3; ++c) d.add(d.b2 + c, d_bias[c]);
    unfold_linear(hidden, batch.rows(), of, eps[0], state, d_folded.data(), d, matrix, vector);
    if (!d_x) return;

    // The residual's share, and the statistics'; then what neighbours took from each node.
    over_rows(batch, [&](i64 first, i64 last) {
        for (i64 n = first; n < last; ++n)
            for (int c = 0; c < 3; ++c)
                d_x[n * 3 + c] += g[n * 3 + c] + vector[c] + x[n * 3] * matrix[c] +
                                  x[n * 3 + 1] * matrix[3 + c] + x[n * 3 + 2] * matrix[6 + c];
    });
    if (of.root)
        neighbour_sums(d_sums.get(), batch, [&](i64 line, const float* of_line) {
            for (i64 i = 0; i < length; ++i) d_x[line * length + i] += of_line[i];
        });
}

i64 lanes(i64) { return LANES; }

i64 state_numbers(i64 hidden, i64 conv, i64) { return state_length(hidden, conv); }

// Layers one after the other. Of each layer: `shapes` height, width, hidden; 11 weights; 2 eps; means
// and variances of both BatchNorms that are `running`, to go by, or null to go by the batch; those
// that are `moved` by the batch's, or null, with 2 counts and 2 momentums; its y in `ys`, its output
// in `outs` but the last one's, which is in `out`; its state.
void forward_layers(i64 layers, i64 images, const i64* shapes, const float* x,
                    const float* const* weights, const double* eps, const float* const* running,
                    float* const* moved, i64* const* batches, const double* momentum, float* ys,
                    float* outs, float* out, double* states, i64 threads) {
    for (i64 i = 0; i < layers; ++i) {
        const i64* shape = shapes + i * 3;
        const Batch batch = {images, shape[0], shape[1], threads};
        const i64 length = batch.rows() * kChannels;
        float* at = i + 1 < layers ? outs + i * length : out;
        const auto own = [&](auto of, i64 count) { return of ? of + i * count : nullptr; };
        forward_layer(batch, shape[2], x, weights + i * 11, own(running, 4), eps + i * 2,
                      own(moved, 4), own(batches, 2), own(momentum, 2), ys + i * length, at,
                      states);
        x = at;
        states += state_length(shape[2], weights[i * 11 + 4] != nullptr);
    }
}

// Back through the same, if it went by the batch; gradients of weights are added to what is there. g
// is that of `out`; `states` begins with the first layer's.
void backward_layers(i64 layers, i64 images, const i64* shapes, const float* x, const float* ys,
                     const float* outs, const float* g, const float* const* weights,
                     const double* eps, const double* states, float* d_x, float* const* gradients,
                     i64 threads) {
    const i64 length = images * shapes[0] * shapes[1] * kChannels;
    const Rows between(new float[2 * length]);
    const auto output_of = [&](i64 layer) { return between.get() + (layer % 2) * length; };
    for (i64 i = 0; i < layers; ++i)
        states += state_length(shapes[i * 3 + 2], weights[i * 11 + 4] != nullptr);
    for (i64 i = layers - 1; i >= 0; --i) {
        const i64* shape = shapes + i * 3;
        const Batch batch = {images, shape[0], shape[1], threads};
        states -= state_length(shape[2], weights[i * 11 + 4] != nullptr);
        float* d_input = i > 0 ? output_of(i - 1) : d_x;
        backward_layer(batch, shape[2], i > 0 ? outs + (i - 1) * length : x, ys + i * length, g,
                       weights + i * 11, eps + i * 2, states, d_input, gradients + i * 11);
        g = d_input;
    }
}

}  // namespace

EXPORT(vig_lanes, lanes)
EXPORT(vig_state_length, state_numbers)
EXPORT(vig_forward, forward_layers)
EXPORT(vig_backward, backward_layers)
