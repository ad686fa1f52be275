// Features kept in half precision: read as float, of which every half is one.

#pragma once

#include "rows.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

#if defined(__aarch64__)
using Half = __fp16;
#define HAS_HALVES
#elif defined(__FLT16_MANT_DIG__)
using Half = _Float16;
#define HAS_HALVES
#endif

namespace {

// The instructions by name: the compiler converts vectors of halves one by one.
template <int N, typename S, typename T>
void convert(const S* from, T* to) {
#ifdef __F16C__
  if constexpr (N == 4) {
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
  } else if constexpr (N == 1) {
    typename Lanes<T, N>::Real x;
    x[0] = static_cast<T>(*from);
    return x;
  } else {
    typename Lanes<T, N>::Real x;
    convert<N>(from, reinterpret_cast<T*>(&x));
    return x;
  }
}

}  // namespace
