// Products of features with a layer's weight [F, D]: of stored entries (CSR), and of dense rows to
// which dropout is applied while they are read.

#include "rows.h"

namespace {

// The entries of one row that are not zero; dropout leaves about half of them so.
template <typename T>
struct Kept {
  std::vector<i64> column;
  std::vector<T> value;
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
  constexpr int LANES = std::min<int>(D, 32 / sizeof(T));
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
                    const T* weight, T* out, i64 width, bool* finite, i64 parts) {
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
                     const T* upstream, T* grad, i64 features, i64 width, bool finite, i64 parts) {
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

// Rows of dense features: row k is row at[k] of x [.., F], or row k where `at` is null, and has the
// number ids[k] in the full graph, by which its mask is drawn. x may be kept as S.
template <typename T, typename S = T>
struct DenseRows {
  const S* x;
  const i64 *at, *ids;
  i64 rows, features;
  T scale;
  Mask mask;
  const S* row(i64 k) const { return x + (at ? at[k] : k) * features; }
  u32 base(i64 k) const { return static_cast<u32>(ids[k]) * static_cast<u32>(features); }
  // Row k after dropout.
  void drop(i64 k, T* to) const {
    const S* from = row(k);
    const u32 first = base(k);
    const Mask own = mask;
    each_vector<T>(features, [&](auto lanes, i64 i) {
      using V = Lanes<T, decltype(lanes)::value>;
      const typename V::Real zero = {}, value = load_as<T, decltype(lanes)::value>(from + i);
      // Products, so that NaN and infinity do not vanish where they are dropped.
      V::store(to + i, V::kept(own, first + static_cast<u32>(i)) ? value * scale : value * zero);
    });
  }
};

constexpr int TILE = 8;

// Up to TILE rows of X after dropout, and which they are.
template <typename T>
struct Tile {
  explicit Tile(i64 features) : rows(TILE * features), features(features) {}
  std::vector<T> rows;
  i64 features, number[TILE], count = 0;
  template <typename S>
  bool take(const DenseRows<T, S>& x, i64 k) {
    x.drop(k, rows.data() + count * features);
    number[count++] = k;
    return count == TILE;
  }
  // out [.., width]: the rows times weight [F, width]. No rows are left then.
  void multiply(const T* weight, T* out, i64 width) {
    clear_missing();
    each_vector<T>(width, [&](auto lanes, i64 d) {
      using V = Lanes<T, decltype(lanes)::value>;
      typename V::Real sum[TILE] = {};
      for (i64 k = 0; k < features; ++k) {
        const typename V::Real w = V::load(weight + k * width + d);
        for (int r = 0; r < TILE; ++r) sum[r] += w * rows[r * features + k];
      }
      for (i64 r = 0; r < count; ++r) V::store(out + number[r] * width + d, sum[r]);
    });
    count = 0;
  }
  // own [F, width] += the rows, transposed, times theirs of upstream [.., width]. No rows are left.
  void add_transposed(const T* upstream, T* own, i64 width) {
    if (count == 0) return;
    clear_missing();
    each_vector<T>(width, [&](auto lanes, i64 d) {
      using V = Lanes<T, decltype(lanes)::value>;
      typename V::Real from[TILE] = {};
      for (i64 r = 0; r < count; ++r) from[r] = V::load(upstream + number[r] * width + d);
      for (i64 k = 0; k < features; ++k) {
        typename V::Real sum = V::load(own + k * width + d);
        for (int r = 0; r < TILE; ++r) sum += from[r] * rows[r * features + k];
        V::store(own + k * width + d, sum);
      }
    });
    count = 0;
  }

 private:
  void clear_missing() { std::fill(rows.begin() + count * features, rows.end(), T(0)); }
};

// out [rows, D]: X after dropout times weight. `finite` becomes false where a product is not.
template <typename T, typename S>
void dropped_forward(const DenseRows<T, S>& x, const T* weight, T* out, i64 width, bool* finite,
                     i64 parts) {
  in_parts(parts, [&](int part) {
    Watch<T> watch(finite);
    Tile<T> tile(x.features);
    const i64 first = even_cut(x.rows, part, parts), last = even_cut(x.rows, part + 1, parts);
    for (i64 row = first; row < last; ++row) {
      const bool full = tile.take(x, row);
      if (full || row + 1 == last) tile.multiply(weight, out, width);
    }
    watch.see(out + first * width, (last - first) * width);
  });
}

// grad [parts, F, D]: each part's share of X^T after dropout @ upstream; the whole ends in grad[0].
// Rows without a gradient are left out if all products of forward were `finite`.
template <typename T, typename S>
void dropped_backward(const DenseRows<T, S>& x, const T* upstream, T* grad, i64 width, bool finite,
                      i64 parts) {
  const i64 size = x.features * width;
  in_parts(parts, [&](int part) {
    Tile<T> tile(x.features);
    T* own = grad + part * size;
    std::fill(own, own + size, T(0));
    const i64 last = even_cut(x.rows, part + 1, parts);
    for (i64 row = even_cut(x.rows, part, parts); row < last; ++row) {
      const T* from = upstream + row * width;
      if (finite && all_zero(from, width)) continue;
      if (tile.take(x, row)) tile.add_transposed(upstream, own, width);
    }
    tile.add_transposed(upstream, own, width);
  });
  add_parts(grad, size, parts);
}

}  // namespace

#define FEATURE_FUNCTIONS(T, S, SUFFIX)                             \
  EXPORT(dropped_forward_##SUFFIX, dropped_forward<T, S>)           \
  EXPORT(dropped_backward_##SUFFIX, dropped_backward<T, S>)

FEATURE_FUNCTIONS(float, float, f32)
FEATURE_FUNCTIONS(double, double, f64)
FEATURE_FUNCTIONS(float, Half, f16)
EXPORT(sparse_forward_f32, sparse_forward<float>)
EXPORT(sparse_forward_f64, sparse_forward<double>)
EXPORT(sparse_backward_f32, sparse_backward<float>)
EXPORT(sparse_backward_f64, sparse_backward<double>)
