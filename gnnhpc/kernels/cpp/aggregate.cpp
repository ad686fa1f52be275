// Sums and maxima over each node's neighbours, forward and backward, for one machine's cores.
//
// Edges come sorted by the row that they end in, so that each row is written once, by one thread,
// and its sum is held in registers; backward is the same sum over the edges sorted by the row that
// they start from. No sum depends on how many threads there are: same input, same bits.

#include "sorted_edges.h"

namespace {

// out[i] = scale_out[i] * sum over edges j -> i of weight * scale_in[j] * x[j], + own * x[i] + add[i]
// + bias. Scales, weights, add and bias may be null. Edge e has weight[e], or weight[number[e]].
// Without `loops` an edge from a row to itself is left out. Rows from `self_rows` on have no input of
// their own. `width` columns; rows of x, add and out lie `stride` numbers apart. Row j of the input is
// row ids[j] of x, where there are ids; x may be kept as S. Edges are numbered in I, and so are the
// rows that they join.
template <typename T, typename I, typename S = T>
struct Sum {
  const I *indptr, *from, *number;
  const i64* ids;
  const S* x;
  const T *add, *scale_in, *scale_out, *weight, *bias;
  T* out;
  i64 rows, self_rows, width, x_stride, add_stride, out_stride;
  T own;
  bool loops;

  const S* input(i64 row) const { return x + (ids ? ids[row] : row) * x_stride; }
};

// D columns from column d on, of one row.
template <bool WEIGHTED, typename T, typename I, typename S, int D>
void sum_columns(const Sum<T, I, S>& s, i64 row, i64 d) {
  constexpr int LANES = std::min<int>(D, VECTOR_BYTES / sizeof(T));
  using V = Lanes<T, LANES>;
  typename V::Real sum[D / LANES] = {};
  const i64 end = s.indptr[row + 1], all = s.indptr[s.rows];
  for (i64 e = s.indptr[row]; e < end; ++e) {
    fetch(s.input(s.from[std::min(e + AHEAD, all - 1)]) + d, D);
    const i64 other = s.from[e];
    if (other == row && !s.loops) continue;
    const S* x = s.input(other) + d;
    T scale = s.scale_in ? s.scale_in[other] : T(1);
    if constexpr (WEIGHTED) scale *= s.weight[s.number ? s.number[e] : e];
    for (int k = 0; k < D / LANES; ++k) sum[k] += load_as<T, LANES>(x + k * LANES) * scale;
  }
  const T scale = s.scale_out ? s.scale_out[row] : T(1);
  const bool has_own = s.own != T(0) && row < s.self_rows;
  T* out = s.out + row * s.out_stride + d;
  for (int k = 0; k < D / LANES; ++k) {
    const i64 at = d + k * LANES;
    typename V::Real value = sum[k] * scale;
    if (has_own) value += load_as<T, LANES>(s.input(row) + at) * s.own;
    if (s.add) value += V::load(s.add + row * s.add_stride + at);
    if (s.bias) value += V::load(s.bias + at);
    V::store(out + k * LANES, value);
  }
}

// In pieces of columns that fit in registers.
template <typename T, typename I, typename S>
void sum_row(const Sum<T, I, S>& s, i64 row) {
  in_pieces<64, 32, 16, 8, 4, 1>(s.width, [&](auto columns, i64 d) {
    if (s.weight) sum_columns<true, T, I, S, columns>(s, row, d);
    else sum_columns<false, T, I, S, columns>(s, row, d);
  });
}

template <typename T, typename I, typename S>
void sum_rows(const Sum<T, I, S>& s, i64 parts) {
  each_row_by_edges(s.indptr, s.rows, parts, [&](i64 row) { sum_row(s, row); });
}

// The same where x is a gradient [x_rows, width]: rows of zeros are left out, if most are that.
template <typename T, typename I>
void sum_gradient(const Sum<T, I>& s, i64 x_rows, i64 parts) {
  const Marks marks = mark_if_few(s.x, s.x_stride, x_rows, s.width, parts);
  in_parts(parts, [&](int part) {
    const MarkedEdges<I> marked(s.indptr, s.number, s.from, s.rows, part, parts, marks);
    Sum<T, I> own = s;
    if (marked.starts != s.indptr) {
      own.indptr = marked.starts, own.from = marked.targets, own.number = marked.numbers;
      own.rows = marked.last;
    }
    for (i64 row = marked.row; row < marked.last; ++row) sum_row(own, row);
  });
}

// The largest of the neighbours' numbers, column by column, and the row that each is of: the first
// of several; a row without neighbours gets 0 and -1. NaN is larger than any number. An edge from a
// row to itself is left out.
template <typename T, typename I>
void max_rows(const I* indptr, const I* from, i64 rows, i64 width, const T* features, i64 stride,
              T* out, i32* winners, i64 parts) {
  each_row_by_edges(indptr, rows, parts, [=](i64 row) {
    T* __restrict best = out + row * width;
    i32* __restrict winner = winners + row * width;
    bool any = false;
    for (i64 e = indptr[row]; e < indptr[row + 1]; ++e) {
      if (from[e] == row) continue;
      const T* __restrict x = features + from[e] * stride;
      const auto number = static_cast<i32>(from[e]);
      for (i64 d = 0; d < width; ++d) {
        const bool larger = !any || (!(x[d] <= best[d]) && best[d] == best[d]);
        best[d] = larger ? x[d] : best[d];
        winner[d] = larger ? number : winner[d];
      }
      any = true;
    }
    if (!any) {
      std::fill(best, best + width, T(0));
      std::fill(winner, winner + width, -1);
    }
  });
}

// By source: grad[j] = sum over rows i that j leads to of upstream[i] where j is i's winner.
template <typename T, typename I>
void max_gradient(const I* indptr, const I* to, i64 rows, i64 width, const T* upstream,
                  const i32* winner, T* grad, i64 parts) {
  each_row_by_edges(indptr, rows, parts, [=](i64 row) {
    T* __restrict own = grad + row * width;
    std::fill(own, own + width, T(0));
    const auto number = static_cast<i32>(row);
    for (i64 e = indptr[row]; e < indptr[row + 1]; ++e) {
      if (to[e] == row) continue;
      const T* __restrict from = upstream + to[e] * width;
      const i32* __restrict won = winner + to[e] * width;
      for (i64 d = 0; d < width; ++d) own[d] += won[d] == number ? from[d] : T(0);
    }
  });
}

}  // namespace

#define EDGE_FUNCTIONS(T, I, SUFFIX)                  \
  EXPORT(sum_rows_##SUFFIX, sum_rows<T, I, T>)        \
  EXPORT(sum_gradient_##SUFFIX, sum_gradient<T, I>)   \
  EXPORT(max_rows_##SUFFIX, max_rows<T, I>)           \
  EXPORT(max_gradient_##SUFFIX, max_gradient<T, I>)

EDGE_FUNCTIONS(float, i32, f32_i32)
EDGE_FUNCTIONS(float, i64, f32_i64)
EDGE_FUNCTIONS(double, i32, f64_i32)
EDGE_FUNCTIONS(double, i64, f64_i64)
EXPORT(sum_rows_f16_i32, sum_rows<float, i32, Half>)
EXPORT(sum_rows_f16_i64, sum_rows<float, i64, Half>)
