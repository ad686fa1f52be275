// What attention layers share, whatever the score: softmax and sums over the edges of each row.
//
// Features of a node are stored channel by channel, heads innermost ([C, H]): all heads of a
// channel share one vector register, so no step needs a sum across lanes, and widths such as
// 8 heads of 3 classes vectorise as well as 8 of 8. Work is cut into as many parts as threads,
// always in the same places, and partial sums are added in order: same input, same bits.

#pragma once

#include "sorted_edges.h"

namespace {

// One attention layer over one block, with H heads of C channels. Edges and the rows that they join
// are numbered in I, by target and, for backward, by source. `targets` are GATv2's features of
// targets; the two scores [rows, H] are GAT's. GAT has two attention vectors, GATv2 the first only.
// In `out` and `upstream`, [rows_out, H * C] or [rows_out, C], heads lie side by side or are averaged.
template <typename T, typename I>
struct Layer {
  const I *indptr, *source, *edge, *by_source, *order, *target;
  const T *features, *targets, *att_source, *att_target, *bias, *upstream;
  // coefficient [edges, H]: the softmax, negative where dropped. lanes [rows_out, C, H]: the upstream
  // gradient. pairs [edges, 2, H]: the coefficient and the gradient of the edge's score, side by
  // side because the pass by source reads them in any order.
  T *out, *score_source, *score_target, *coefficient, *lanes, *pairs;
  // Of the features, of targets ([rows_out, H] in GAT, else [rows_out, C, H]), of the vectors, of
  // which each part has a copy; the whole is in the first.
  T *grad_features, *grad_target, *grad_attention;
  i64 rows_in, rows_out, heads, channels, parts;
  T slope, scale;
  // Whether all outputs are finite: forward writes it, backward reads it.
  bool average, finite;
};

// N of the heads at a time, in the lanes of one register; N divides their number.
template <typename T, typename I, int N>
struct EdgeWise {
  using V = Lanes<T, N>;
  using Real = typename V::Real;
  static constexpr int LANES = N;
  const Layer<T, I>& a;
  const i64 c, h, width;
  explicit EdgeWise(const Layer<T, I>& layer)
      : a(layer), c(layer.channels), h(layer.heads), width(c * h) {}

  // body(row, head) for the rows of a part, one group of heads after the other.
  template <typename Body>
  void each_target(int part, Body body) const {
    const i64 first = balanced_cut(a.indptr, a.rows_out, part, a.parts);
    const i64 last = balanced_cut(a.indptr, a.rows_out, part + 1, a.parts);
    for (i64 head = 0; head < h; head += N)
      for (i64 row = first; row < last; ++row) body(row, head);
  }

  // A head's dot product of two nodes' features, [C, H] each, seen from its first head.
  Real dot(const T* x, const T* y) const {
    Real sum = {};
    for (i64 k = 0; k < width; k += h) sum += V::load(x + k) * V::load(y + k);
    return sum;
  }

  void add(Real weight, const T* x, T* out) const {
    for (i64 k = 0; k < width; k += h) V::store(out + k, V::load(out + k) + weight * V::load(x + k));
  }

  // Features of edge e's source, and those that are read some edges later: neighbours lie anywhere.
  const T* of_source(i64 e, i64 head) const { return a.features + a.source[e] * width + head; }
  void fetch_source(i64 e, i64 head) const {
    const i64 ahead = std::min(e + AHEAD, static_cast<i64>(a.indptr[a.rows_out]) - 1);
    fetch(a.features + a.source[ahead] * width + head, width);
  }

  Real bend(Real raw) const { return raw > 0 ? Real{} + T(1) : Real{} + a.slope; }

  // The scores of one target's edges, whose largest is `peak`, become coefficients.
  void softmax(i64 first, i64 end, i64 head, Real peak, Mask mask) const {
    T* coefficient = a.coefficient;
    Real total = {};
    for (i64 e = first; e < end; ++e) {
      const Real raised = V::exponential(V::load(coefficient + e * h + head) - peak);
      total += raised;
      V::store(coefficient + e * h + head, raised);
    }
    const Real share = T(1) / total;
    for (i64 e = first; e < end; ++e) {
      const Real alpha = V::load(coefficient + e * h + head) * share;
      const auto kept = V::kept(mask, static_cast<u32>(a.edge[e] * h + head));
      V::store(coefficient + e * h + head, kept ? alpha : -alpha);
    }
  }

  // Edges that meet in one row: the rows they come from, and their numbers (none: their places).
  // `all` edges follow one another, so those after `end` are the next rows'.
  struct Edges {
    const I *from, *number;
    i64 first, end, all;
    i64 at(i64 place) const { return number ? number[place] : place; }
  };

  // to [C, H] = sum over edges of weight times x [rows, C, H]; weights lie `stride` apart.
  // A negative weight belongs to a dropped edge, the others are still to be scaled.
  void collect(const Edges& edges, const T* weight, i64 stride, T scale, const T* x, T* to) const {
    i64 k = 0;
    auto run = [&](auto channels) {
      collect_channels<decltype(channels)::value>(edges, weight, stride, scale, x + k * h,
                                                  to + k * h);
      k += decltype(channels)::value;
    };
    while (k + 8 <= c) run(std::integral_constant<int, 8>());
    if (k + 4 <= c) run(std::integral_constant<int, 4>());
    if (k + 2 <= c) run(std::integral_constant<int, 2>());
    if (k < c) run(std::integral_constant<int, 1>());
  }

  template <int CHANNELS>
  void collect_channels(const Edges& edges, const T* weight, i64 stride, T scale, const T* x,
                        T* to) const {
    Real sum[CHANNELS] = {};
    for (i64 place = edges.first; place < edges.end; ++place) {
      const i64 ahead = std::min(place + AHEAD, edges.all - 1);
      fetch(x + edges.from[ahead] * width, CHANNELS * h);
      if (edges.number) fetch(weight + edges.number[ahead] * stride, stride);
      const Real loaded = V::load(weight + edges.at(place) * stride);
      const Real kept = loaded < 0 ? Real{} : loaded * scale;
      const T* row = x + edges.from[place] * width;
      for (int k = 0; k < CHANNELS; ++k) sum[k] += kept * V::load(row + k * h);
    }
    for (int k = 0; k < CHANNELS; ++k) V::store(to + k * h, sum[k]);
  }

  void finish(i64 row, const T* __restrict sum) const {
    const T* __restrict bias = a.bias;
    T* __restrict out = a.out + row * (a.average ? c : width);
    for (i64 k = 0; k < c; ++k) {
      T mean = 0;
      for (i64 i = 0; i < h; ++i) {
        if (a.average) mean += sum[k * h + i];
        else out[i * c + k] = sum[k * h + i] + bias[i * c + k];
      }
      if (a.average) out[k] = mean / static_cast<T>(h) + bias[k];
    }
  }

  // Fills `lanes` for the rows that have a gradient, where these are few. If the layer's output was
  // not all finite, all rows count: a gradient of 0 times what it came from may be NaN.
  Marks to_lanes() const {
    const i64 wide = a.average ? c : width;
    const Marks marks = a.finite ? mark_if_few(a.upstream, wide, a.rows_out, wide, a.parts)
                                 : Marks(a.rows_out, 1);
    each_row(a.rows_out, a.parts, [&](i64 row) {
      if (!marks[row]) return;
      const T* __restrict from = a.upstream + row * wide;
      T* __restrict to = a.lanes + row * width;
      for (i64 k = 0; k < c; ++k)
        for (i64 i = 0; i < h; ++i)
          to[k * h + i] = a.average ? from[k] / static_cast<T>(h) : from[i * c + k];
    });
    return marks;
  }
};

}  // namespace
