// Products of dense features with a layer's weight [F, D], dropout applied while they are read.

#pragma once

#include <vector>

#include "halves.h"
#include "stored_products.h"

namespace {

// Rows of dense features: row k is row at[k] of x [.., F], or row k where `at` is null, and has the
// number ids[k] in the full graph, by which its mask is drawn. x may be kept as S.
template <typename T, typename S = T>
struct DenseRows {
  const S* x;
  const i64 *at, *ids;
  i64 rows, features;
  Mask mask;
  T scale;
  const S* row(i64 k) const { return x + (at ? at[k] : k) * features; }
  u32 base(i64 k) const { return static_cast<u32>(ids[k]) * static_cast<u32>(features); }
  // Row k after dropout.
  void drop(i64 k, T* to) const {
    const S* from = row(k);
    const u32 first = base(k);
    const Mask own = mask;
    each_vector<T>(features, [&](auto lanes, i64 i) {
      using V = Lanes<T, decltype(lanes)::value>;
      const typename V::Real zero = {}, given = load_as<T, decltype(lanes)::value>(from + i);
      // Products, so that NaN and infinity do not vanish where they are dropped.
      V::store(to + i, V::kept(own, first + static_cast<u32>(i)) ? given * scale : given * zero);
    });
  }
};

// Where outputs are few, sorting out the entries that dropout leaves takes longer than to multiply
// by its zeros, several rows at once.
constexpr i64 FEW_OUTPUTS = 32;
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
                     int parts) {
  in_parts(parts, [&](int part) {
    Watch<T> watch(finite);
    Tile<T> tile(x.features);
    Kept<T> kept;
    const i64 first = even_cut(x.rows, part, parts), last = even_cut(x.rows, part + 1, parts);
    for (i64 row = first; row < last; ++row) {
      const bool full = tile.take(x, row);
      if (width > FEW_OUTPUTS) {
        multiply_row(kept, kept.gather(tile.rows.data(), x.features), weight, out + row * width,
                     width);
        tile.count = 0;
      } else if (full || row + 1 == last) {
        tile.multiply(weight, out, width);
      }
    }
    watch.see(out + first * width, (last - first) * width);
  });
}

// grad [parts, F, D]: each part's share of X^T after dropout @ upstream; the whole ends in grad[0].
// Rows without a gradient are left out if all products of forward were `finite`.
template <typename T, typename S>
void dropped_backward(const DenseRows<T, S>& x, const T* upstream, T* grad, i64 width, bool finite,
                      int parts) {
  const i64 size = x.features * width;
  in_parts(parts, [&](int part) {
    Tile<T> tile(x.features);
    Kept<T> kept;
    T* own = grad + part * size;
    std::fill(own, own + size, T(0));
    const i64 last = even_cut(x.rows, part + 1, parts);
    for (i64 row = even_cut(x.rows, part, parts); row < last; ++row) {
      const T* from = upstream + row * width;
      if (finite && all_zero(from, width)) continue;
      const bool full = tile.take(x, row);
      if (width > FEW_OUTPUTS) {
        add_row(kept, kept.gather(tile.rows.data(), x.features), from, own, width);
        tile.count = 0;
      } else if (full) {
        tile.add_transposed(upstream, own, width);
      }
    }
    tile.add_transposed(upstream, own, width);
  });
  add_parts(grad, size, parts);
}

}  // namespace
