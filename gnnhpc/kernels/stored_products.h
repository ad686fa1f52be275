// Products of features that are stored as their entries (CSR) with a layer's weight [F, D].

#pragma once

#include <vector>

#include "csr_rows.h"

namespace {

// The entries of one row that are not zero; dropout leaves about half of them so.
template <typename T>
struct Kept {
  std::vector<i64> column;
  std::vector<T> value;
  // Of a dense row.
  i64 gather(const T* from, i64 width) {
    column.resize(width);
    value.resize(width);
    i64 count = 0;
    for (i64 k = 0; k < width; ++k) {
      column[count] = k;
      value[count] = from[k];
      count += from[k] != T(0);
    }
    return count;
  }
  i64 gather(const i64* columns, const T* values, i64 first, i64 last) {
    if (static_cast<i64>(value.size()) < last - first) {
      column.resize(last - first);
      value.resize(last - first);
    }
    i64 count = 0;
    for (i64 k = first; k < last; ++k) {
      column[count] = columns[k];
      value[count] = values[k];
      count += values[k] != T(0);
    }
    return count;
  }
};

// D neighbouring columns of one row of X [rows, F] @ weight [F, stride], held in registers.
template <typename T, int D>
void multiply_columns(const i64* column, const T* value, i64 count, const T* weight, T* out,
                      i64 stride) {
  constexpr int LANES = std::min(D, 8);
  using V = Lanes<T, LANES>;
  typename V::Real sum[D / LANES] = {};
  for (i64 k = 0; k < count; ++k) {
    const T* w = weight + column[k] * stride;
    for (int d = 0; d < D / LANES; ++d) sum[d] += V::load(w + d * LANES) * value[k];
  }
  std::memcpy(out, sum, sizeof sum);
}

// One row's entries times weight [F, width].
template <typename T>
void multiply_row(const Kept<T>& kept, i64 count, const T* weight, T* to, i64 width) {
  const i64* column = kept.column.data();
  const T* value = kept.value.data();
  i64 d = 0;
  for (; d + 64 <= width; d += 64)
    multiply_columns<T, 64>(column, value, count, weight + d, to + d, width);
  for (; d + 8 <= width; d += 8)
    multiply_columns<T, 8>(column, value, count, weight + d, to + d, width);
  for (; d < width; ++d)
    multiply_columns<T, 1>(column, value, count, weight + d, to + d, width);
}

// own [F, width] += the row's entries, as a column, times from [width].
template <typename T>
void add_row(const Kept<T>& kept, i64 count, const T* from, T* own, i64 width) {
  for (i64 k = 0; k < count; ++k) {
    T* __restrict to = own + kept.column[k] * width;
    const T v = kept.value[k];
    for (i64 d = 0; d < width; ++d) to[d] += v * from[d];
  }
}

// `finite` becomes false where a product is not.
template <typename T>
void sparse_forward(const i64* indptr, const i64* columns, const T* values, i64 rows,
                    const T* weight, T* out, i64 width, bool* finite, int parts) {
  in_parts(parts, [&](int part) {
    Kept<T> kept;
    Watch<T> watch(finite);
    const i64 last = balanced_cut(indptr, rows, part + 1, parts);
    for (i64 row = balanced_cut(indptr, rows, part, parts); row < last; ++row) {
      const i64 count = kept.gather(columns, values, indptr[row], indptr[row + 1]);
      multiply_row(kept, count, weight, out + row * width, width);
      watch.see(out + row * width, width);
    }
  });
}

// grad [parts, F, D]: each part's share of X^T @ upstream; the whole ends in grad[0]. Rows without a
// gradient are left out if all products of forward were `finite`.
template <typename T>
void sparse_backward(const i64* indptr, const i64* columns, const T* values, i64 rows,
                     const T* upstream, T* grad, i64 features, i64 width, bool finite, int parts) {
  in_parts(parts, [&](int part) {
    Kept<T> kept;
    T* own = grad + part * features * width;
    std::fill(own, own + features * width, T(0));
    const i64 last = balanced_cut(indptr, rows, part + 1, parts);
    for (i64 row = balanced_cut(indptr, rows, part, parts); row < last; ++row) {
      if (finite && all_zero(upstream + row * width, width)) continue;
      const i64 count = kept.gather(columns, values, indptr[row], indptr[row + 1]);
      add_row(kept, count, upstream + row * width, own, width);
    }
  });
  add_parts(grad, features * width, parts);
}

}  // namespace
