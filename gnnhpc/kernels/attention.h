// What attention layers share, of whatever score: softmax and sums over the edges of each row.
//
// Features of a node are stored channel by channel, heads innermost ([C, H]): all heads of a
// channel share one vector register, so no step needs a sum across lanes, and widths such as
// 8 heads of 3 classes vectorise as well as 8 of 8.

#pragma once

#include "csr_rows.h"

namespace {

// One attention layer over one block of edges, CSR by target. Arrays, with H heads of C channels:
// features [rows_in, C, H], attention vectors [C, H], scores [rows, H], by edge [edges, H];
// output and upstream gradient [rows_out, H * C], or [rows_out, C] where heads are averaged. Edges and
// the rows they join are numbered in I.
template <typename T, typename I>
struct Layer {
  const I *indptr, *source, *edge;
  i64 rows_in, rows_out, heads, channels;
  const T *features, *att_source, *att_target;
  T slope;
  bool average;
  int parts;
};

// N of the heads at a time, in the lanes of one register; N divides their number.
template <typename T, typename I, int N>
struct EdgeWise {
  using V = Lanes<T, N>;
  using Real = typename V::Real;
  const Layer<T, I>& a;
  const i64 c, h, width;
  explicit EdgeWise(const Layer<T, I>& layer)
      : a(layer), c(layer.channels), h(layer.heads), width(c * h) {}

  // body(part, head) for all parts at once and all groups of heads in turn.
  template <typename Body>
  void each_group(Body body) const {
    in_parts(a.parts, [&](int part) {
      for (i64 head = 0; head < h; head += N) body(part, head);
    });
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

  // Ask for memory that will be wanted AHEAD edges later: neighbours lie anywhere.
  static constexpr i64 AHEAD = 8;
  static void fetch(const T* from, i64 count) {
    constexpr i64 LINE = 64 / sizeof(T);
    for (i64 k = 0; k < count; k += LINE) __builtin_prefetch(from + k);
  }

  Real bend(Real raw) const { return raw > 0 ? Real{} + T(1) : Real{} + a.slope; }

  // coefficient [edges, H], holding the scores of one target's edges with their largest `peak`,
  // becomes their softmax, negative where dropped: its sign is the mask.
  void softmax(i64 first, i64 end, i64 head, Real peak, T* coefficient, Mask mask) const {
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

  // Edges that end in one row: the rows they come from, and their numbers (none: their places).
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

  void finish(const T* __restrict sum, const T* __restrict bias, T* __restrict out) const {
    for (i64 k = 0; k < c; ++k) {
      T mean = 0;
      for (i64 i = 0; i < h; ++i) {
        if (a.average) mean += sum[k * h + i];
        else out[i * c + k] = sum[k * h + i] + bias[i * c + k];
      }
      if (a.average) out[k] = mean / static_cast<T>(h) + bias[k];
    }
  }

  // The upstream gradient with heads innermost: lanes [rows_out, C, H], where few rows have one of
  // these alone. If the layer's output was not all `finite`, all are taken: a gradient of 0 times
  // what it came from may be NaN.
  Marks to_lanes(const T* upstream, bool finite, T* lanes) const {
    const i64 wide = a.average ? c : width;
    const Marks marks = finite ? mark_if_few(upstream, wide, a.rows_out, wide, a.parts)
                               : Marks(a.rows_out, 1);
    in_parts(a.parts, [&](int part) {
      const i64 last = even_cut(a.rows_out, part + 1, a.parts);
      for (i64 row = even_cut(a.rows_out, part, a.parts); row < last; ++row) {
        if (!marks[row]) continue;
        const T* __restrict from = upstream + row * wide;
        T* __restrict to = lanes + row * width;
        for (i64 k = 0; k < c; ++k)
          for (i64 i = 0; i < h; ++i)
            to[k * h + i] = a.average ? from[k] / static_cast<T>(h) : from[i * c + k];
      }
    });
    return marks;
  }
};

template <template <typename, typename, int> class Attention, typename T, typename I, typename Body>
void with_heads(const Layer<T, I>& layer, Body body) {
  if (layer.heads % 8 == 0) body(Attention<T, I, 8>(layer));
  else if (layer.heads % 4 == 0) body(Attention<T, I, 4>(layer));
  else body(Attention<T, I, 1>(layer));
}

}  // namespace
