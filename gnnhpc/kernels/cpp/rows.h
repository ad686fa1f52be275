// What kernels over rows of a graph share: cuts of the work for threads, dropout's mask, vectors.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#ifdef __F16C__
#include <immintrin.h>
#endif

#include "export.h"

namespace {

using i32 = std::int32_t;
using i64 = std::int64_t;
using u32 = std::uint32_t;

// The mask of one layer at one step: a hash of the entry's number, see gnnhpc/kernels/dropout_mask.py.
struct Mask {
  u32 first, second, threshold;
  // For one number or a vector of them; true, or all ones, where the entry stays.
  template <typename Numbers>
  auto keeps(Numbers x) const {
    x += first;
    x ^= x >> 16;
    x *= 0x21f0aaadu;
    x ^= x >> 15;
    x += second;
    x *= 0x735a2d97u;
    x ^= x >> 15;
    return x >= threshold;
  }
};

template <typename Body>
void in_parts(i64 parts, Body body) {
#pragma omp parallel for num_threads(parts) schedule(static, 1) if (parts > 1)
  for (int part = 0; part < parts; ++part) body(part);
}

i64 even_cut(i64 count, i64 part, i64 parts) { return count * part / parts; }

// body(row) for each of the rows, in parts of as many.
template <typename Body>
void each_row(i64 rows, i64 parts, Body body) {
  in_parts(parts, [&](int part) {
    const i64 last = even_cut(rows, part + 1, parts);
    for (i64 row = even_cut(rows, part, parts); row < last; ++row) body(row);
  });
}

// body(size as a constant, first number) for `count` numbers in pieces of these sizes, in this order.
template <int... SIZES, typename Body>
void in_pieces(i64 count, Body body) {
  i64 k = 0;
  auto run = [&](auto size) {
    for (; k + size <= count; k += size) body(size, k);
  };
  (run(std::integral_constant<int, SIZES>()), ...);
}

// How many of the numbers from 0 to count - 1 are `before` the others.
template <typename Before>
i64 search(i64 count, Before before) {
  i64 low = 0, high = count;
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if (before(middle)) low = middle + 1; else high = middle;
  }
  return low;
}

// First row of a part, so that parts have equal numbers of edges plus rows.
template <typename I>
i64 balanced_cut(const I* indptr, i64 rows, i64 part, i64 parts) {
  if (part == parts) return rows;
  const i64 wanted = (indptr[rows] + rows) / parts * part;
  return search(rows, [=](i64 row) { return indptr[row] + row < wanted; });
}

// body(row) for each of the rows, in such parts.
template <typename I, typename Body>
void each_row_by_edges(const I* indptr, i64 rows, i64 parts, Body body) {
  in_parts(parts, [&](int part) {
    const i64 last = balanced_cut(indptr, rows, part + 1, parts);
    for (i64 row = balanced_cut(indptr, rows, part, parts); row < last; ++row) body(row);
  });
}

// Whether all of them are 0: a gradient that is so adds nothing to a sum of finite terms.
// NaN is not 0.
template <typename T>
bool all_zero(const T* from, i64 count) {
  constexpr i64 STRETCH = 16;
  i64 k = 0;
  for (; k + STRETCH <= count; k += STRETCH) {
    bool any = false;
    for (i64 i = 0; i < STRETCH; ++i) any |= from[k + i] != T(0);
    if (any) return false;
  }
  for (; k < count; ++k)
    if (from[k] != T(0)) return false;
  return true;
}

// Of each row, whether it has a gradient. In training with labels at few nodes most have none, and
// nothing goes backward along the edges that end there.
using Marks = std::vector<char>;

// Of rows of `width` numbers, `stride` apart.
template <typename T>
void mark_rows(const T* from, i64 stride, i64 rows, i64 width, char* marks, i64 parts) {
  each_row(rows, parts, [&](i64 row) { marks[row] = !all_zero(from + row * stride, width); });
}

// The same, but all marked where more than one in ONE_IN are: to sort out the edges of the others
// would take longer than to go through them. Padding alone leaves rows without a gradient.
constexpr i64 ONE_IN = 4;
template <typename T>
Marks mark_if_few(const T* from, i64 stride, i64 rows, i64 width, i64 parts) {
  Marks marks(rows);
  mark_rows(from, stride, rows, width, marks.data(), parts);
  if (std::count(marks.begin(), marks.end(), 1) * ONE_IN > rows) marks.assign(rows, 1);
  return marks;
}

// Sum the parts' private copies into the first, in order.
template <typename T>
void add_parts(T* partial, i64 size, i64 parts) {
  in_parts(parts, [&](int part) {
    const i64 last = even_cut(size, part + 1, parts);
    for (int other = 1; other < parts; ++other) {
      const T* from = partial + other * size;
      for (i64 k = even_cut(size, part, parts); k < last; ++k) partial[k] += from[k];
    }
  });
}

// Rows that are read some edges later are requested early: neighbours lie anywhere.
constexpr i64 AHEAD = 8;
template <typename T>
void fetch(const T* from, i64 count) {
  constexpr i64 LINE = 64 / sizeof(T);
  for (i64 k = 0; k < count; k += LINE) __builtin_prefetch(from + k);
}

template <typename T, int N>
struct VectorOf {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
};

// N lanes of T, as the compiler's own vectors: loops over lanes were seen to vectorise badly.
template <typename T, int N>
struct Lanes {
  using Real = typename VectorOf<T, N>::type;
  using Integer =
      typename VectorOf<std::conditional_t<sizeof(T) == 4, i32, i64>, N>::type;
  using Bits = typename VectorOf<u32, N>::type;

  static Real load(const T* from) {
    Real x;
    std::memcpy(&x, from, sizeof x);
    return x;
  }
  static void store(T* to, Real x) { std::memcpy(to, &x, sizeof x); }

  // All ones in the lanes whose entries, numbered from `base`, the mask keeps.
  static Integer kept(const Mask& mask, u32 base) {
    Bits x;
    for (int i = 0; i < N; ++i) x[i] = base + static_cast<u32>(i);
    return __builtin_convertvector(mask.keeps(x), Integer);
  }

  // exp for arguments at most 0. Single precision: 2^n times a polynomial (Cephes, S. Moshier)
  // on half of [-ln 2, ln 2], right to a unit in the last place.
  static Real exponential(Real x) {
    if constexpr (sizeof(T) == 8) {
      for (int i = 0; i < N; ++i) x[i] = std::exp(x[i]);
      return x;
    } else {
      const Real least = Real{} - 87.0f;
      // Not the other way round: NaN must come through, so that it reaches the loss.
      x = x < least ? least : x;
      const Integer n = __builtin_convertvector(x * 1.44269504088896341f - 0.5f, Integer);
      const Real whole = __builtin_convertvector(n, Real);
      const Real r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
      Real p = r * 1.9875691500e-4f + 1.3981999507e-3f;
      p = p * r + 8.3334519073e-3f;
      p = p * r + 4.1665795894e-2f;
      p = p * r + 1.6666665459e-1f;
      p = p * r + 5.0000001201e-1f;
      p = p * r * r + r + 1.0f;
      const Integer bits = (n + 127) << 23;
      Real power;
      std::memcpy(&power, &bits, sizeof power);
      return p * power;
    }
  }
};

// Features kept in half precision: read as float, of which every half is one.
#ifdef __aarch64__
using Half = __fp16;
#else
struct Half {
  std::uint16_t bits;
  operator float() const {
#ifdef __F16C__
    return _cvtsh_ss(bits);
#else
    const u32 magnitude = (bits & 0x7fffu) << 13, top = (bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0;
    const u32 signed_one = (bits & 0x8000u) << 16 | 0x3f800000u, all = magnitude | top;
    float value, sign;
    std::memcpy(&value, &all, sizeof value);
    std::memcpy(&sign, &signed_one, sizeof sign);
    return value * sign * (top ? 1.0f : 0x1p112f);
#endif
  }
};
#endif

// Instructions by name: the compiler converts vectors of halves one by one.
template <int N, typename S, typename T>
void convert(const S* from, T* to) {
#ifdef __F16C__
  if constexpr (N < 4) {
    for (int i = 0; i < N; ++i) to[i] = from[i];
  } else if constexpr (N == 4) {
    _mm_storeu_ps(to, _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  } else {
    for (int i = 0; i < N; i += 8) {
      const __m128i kept = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(kept));
    }
  }
#else
  for (int i = 0; i < N; ++i) to[i] = static_cast<T>(from[i]);
#endif
}

// N numbers of T that are kept as S.
template <typename T, int N, typename S>
typename Lanes<T, N>::Real load_as(const S* from) {
  if constexpr (std::is_same_v<S, T>) {
    return Lanes<T, N>::load(from);
  } else {
    typename Lanes<T, N>::Real x;
    convert<N>(from, reinterpret_cast<T*>(&x));
    return x;
  }
}

// Of the machine's vectors; wider ones would be kept in memory.
#ifdef __AVX512F__
constexpr int VECTOR_BYTES = 64;
#else
constexpr int VECTOR_BYTES = 32;
#endif

// body(number of lanes as a constant, first number) for `count` numbers in vectors.
template <typename T, typename Body>
void each_vector(i64 count, Body body) {
  constexpr int LANES = VECTOR_BYTES / sizeof(T);
  in_pieces<LANES, LANES / 2, LANES / 4, 1>(count, body);
}

// Looks for NaN and infinity in what one thread computes: 0 times one of them is not 0, so that
// nothing may be left out for a factor of 0. `finite` becomes false, at the end, if there was one.
template <typename T>
class Watch {
 public:
  explicit Watch(bool* finite) : finite_(finite) {}
  Watch(const Watch&) = delete;
  ~Watch() {
    if (!std::all_of(sum_, sum_ + LANES, [](T x) { return x == T(0); }))
      __atomic_store_n(finite_, false, __ATOMIC_RELAXED);
  }
  void see(const T* from, i64 count) {
    each_vector<T>(count, [&](auto lanes, i64 k) {
      using V = Lanes<T, decltype(lanes)::value>;
      V::store(sum_, V::load(sum_) + V::load(from + k) * T(0));
    });
  }

 private:
  static constexpr int LANES = VECTOR_BYTES / sizeof(T);
  bool* finite_;
  T sum_[LANES] = {};
};

}  // namespace
