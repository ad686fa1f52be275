// Passes over rows one by one, for one machine's cores: dropout, ReLU, copies.

#include "rows.h"

namespace {

// Dropout of x [count], whose numbers are `ids` of the full graph.
template <typename T>
void drop_entries(const T* x, const i64* ids, T* out, i64 count, Mask mask, T scale, i64 parts) {
  in_parts(parts, [&](int part) {
    const Mask own = mask;
    const T* __restrict from = x;
    T* __restrict to = out;
    const i64 last = even_cut(count, part + 1, parts);
    for (i64 k = even_cut(count, part, parts); k < last; ++k) {
      const T scaled = from[k] * scale;
      const T dropped = from[k] * T(0);
      to[k] = own.keeps(static_cast<u32>(ids[k])) ? scaled : dropped;
    }
  });
}

// Dropout of x [rows, width], whose rows are `ids` of the full graph.
template <typename T>
void drop_rows(const T* x, const i64* ids, T* out, i64 rows, i64 width, Mask mask, T scale,
               i64 parts) {
  if (width == 1) return drop_entries(x, ids, out, rows, mask, scale, parts);
  each_row(rows, parts, [=](i64 row) {
    const u32 base = static_cast<u32>(ids[row]) * static_cast<u32>(width);
    const T* __restrict from = x + row * width;
    T* __restrict to = out + row * width;
    for (i64 k = 0; k < width; ++k) {
      const T scaled = from[k] * scale;
      // A product, so that NaN and infinity do not vanish where they are dropped.
      const T dropped = from[k] * T(0);
      to[k] = mask.keeps(base + static_cast<u32>(k)) ? scaled : dropped;
    }
  });
}

// Row k of out is row ids[k] of x.
template <typename T, typename S>
void copy_rows(const S* x, i64 stride, const i64* ids, i64 rows, i64 width, T* out, i64 out_stride,
               i64 parts) {
  each_row(rows, parts, [=](i64 row) {
    std::copy_n(x + ids[row] * stride, width, out + row * out_stride);
  });
}

// relu, then dropout: out = x * scale where x is positive and the mask keeps it, else 0. NaN stays.
template <typename T>
void relu_drop(const T* x, const i64* ids, T* out, i64 rows, i64 width, Mask mask, T scale,
               i64 parts) {
  each_row(rows, parts, [=](i64 row) {
    const u32 base = static_cast<u32>(ids[row]) * static_cast<u32>(width);
    const Mask own = mask;
    each_vector<T>(width, [&](auto lanes, i64 k) {
      using V = Lanes<T, decltype(lanes)::value>;
      const typename V::Real zero = {}, value = V::load(x + row * width + k);
      const typename V::Real positive = value <= zero ? zero : value;
      // A product, so that NaN and infinity do not vanish where they are dropped.
      const typename V::Real dropped = positive * T(0);
      const auto kept = V::kept(own, base + static_cast<u32>(k));
      V::store(out + row * width + k, kept ? positive * scale : dropped);
    });
  });
}

// The gradient of relu_drop, which follows from the output: scale where that is not 0.
template <typename T>
void relu_drop_gradient(const T* upstream, const T* output, T* grad, i64 count, T scale,
                        i64 parts) {
  in_parts(parts, [&](int part) {
    const i64 first = even_cut(count, part, parts);
    each_vector<T>(even_cut(count, part + 1, parts) - first, [&](auto lanes, i64 k) {
      using V = Lanes<T, decltype(lanes)::value>;
      const typename V::Real zero = {}, from = V::load(upstream + first + k);
      V::store(grad + first + k, V::load(output + first + k) == zero ? zero : from * scale);
    });
  });
}

// Whether none of `count` numbers is NaN or infinite.
template <typename T>
void find_finite(const T* x, i64 count, bool* finite, i64 parts) {
  *finite = true;
  in_parts(parts, [&](int part) {
    const i64 first = even_cut(count, part, parts);
    Watch<T>(finite).see(x + first, even_cut(count, part + 1, parts) - first);
  });
}

}  // namespace

#define ROW_FUNCTIONS(T, SUFFIX)                    \
  EXPORT(drop_rows_##SUFFIX, drop_rows<T>)          \
  EXPORT(copy_rows_##SUFFIX, copy_rows<T, T>)       \
  EXPORT(mark_rows_##SUFFIX, mark_rows<T>)          \
  EXPORT(find_finite_##SUFFIX, find_finite<T>)      \
  EXPORT(relu_drop_##SUFFIX, relu_drop<T>)          \
  EXPORT(relu_drop_gradient_##SUFFIX, relu_drop_gradient<T>)

ROW_FUNCTIONS(float, f32)
ROW_FUNCTIONS(double, f64)
EXPORT(copy_rows_f16, copy_rows<float, Half>)
