// Graph attention over edges sorted by target, forward and backward, for one machine's cores.
//
// Features of a node are stored channel by channel, heads innermost ([C, H]): all heads of a
// channel share one vector register, so no step needs a sum across lanes, and widths such as
// 8 heads of 3 classes vectorise as well as 8 of 8. Work is cut into as many parts as threads,
// always in the same places, and partial sums are added in order: same input, same bits.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace {

using i64 = std::int64_t;
using u32 = std::uint32_t;

// The mask of one layer at one step: a hash of the entry's number, see gnnhpc/kernels/mask.py.
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
void in_parts(int parts, Body body) {
#pragma omp parallel for num_threads(parts) schedule(static, 1) if (parts > 1)
  for (int part = 0; part < parts; ++part) body(part);
}

i64 even_cut(i64 count, int part, int parts) { return count * part / parts; }

// First row of a part, so that parts have equal numbers of edges plus rows.
i64 balanced_cut(const i64* indptr, i64 rows, int part, int parts) {
  if (part == parts) return rows;
  const i64 wanted = (indptr[rows] + rows) / parts * part;
  i64 low = 0, high = rows;
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if (indptr[middle] + middle < wanted) low = middle + 1; else high = middle;
  }
  return low;
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
      typename VectorOf<std::conditional_t<sizeof(T) == 4, std::int32_t, i64>, N>::type;
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

template <typename T>
void drop_rows(const T* x, const i64* ids, T* out, i64 rows, i64 width, Mask mask, T scale,
               int parts) {
  in_parts(parts, [&](int part) {
    const i64 last = even_cut(rows, part + 1, parts);
    const Mask own = mask;
    for (i64 row = even_cut(rows, part, parts); row < last; ++row) {
      const u32 base = static_cast<u32>(ids[row]) * static_cast<u32>(width);
      const T* __restrict from = x + row * width;
      T* __restrict to = out + row * width;
      for (i64 k = 0; k < width; ++k) {
        const T scaled = from[k] * scale;
        // A product, so that NaN and infinity do not vanish where they are dropped.
        const T dropped = from[k] * T(0);
        to[k] = own.keeps(base + static_cast<u32>(k)) ? scaled : dropped;
      }
    }
  });
}

template <typename T>
void drop_entries(const T* x, const i64* ids, T* out, i64 count, Mask mask, T scale, int parts) {
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

// The entries of one sparse row that are not zero; dropout leaves about half of them so.
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
  constexpr int LANES = std::min(D, 8);
  using V = Lanes<T, LANES>;
  typename V::Real sum[D / LANES] = {};
  for (i64 k = 0; k < count; ++k) {
    const T* w = weight + column[k] * stride;
    for (int d = 0; d < D / LANES; ++d) sum[d] += V::load(w + d * LANES) * value[k];
  }
  std::memcpy(out, sum, sizeof sum);
}

template <typename T>
void sparse_forward(const i64* indptr, const i64* columns, const T* values, i64 rows,
                    const T* weight, T* out, i64 width, int parts) {
  in_parts(parts, [&](int part) {
    Kept<T> kept;
    const i64 last = balanced_cut(indptr, rows, part + 1, parts);
    for (i64 row = balanced_cut(indptr, rows, part, parts); row < last; ++row) {
      const i64 count = kept.gather(columns, values, indptr[row], indptr[row + 1]);
      const i64* column = kept.column.data();
      const T* value = kept.value.data();
      T* to = out + row * width;
      i64 d = 0;
      for (; d + 64 <= width; d += 64)
        multiply_columns<T, 64>(column, value, count, weight + d, to + d, width);
      for (; d + 8 <= width; d += 8)
        multiply_columns<T, 8>(column, value, count, weight + d, to + d, width);
      for (; d < width; ++d)
        multiply_columns<T, 1>(column, value, count, weight + d, to + d, width);
    }
  });
}

// Sum the parts' private copies into the first, in order.
template <typename T>
void add_parts(T* partial, i64 size, int parts) {
  in_parts(parts, [&](int part) {
    const i64 last = even_cut(size, part + 1, parts);
    for (int other = 1; other < parts; ++other) {
      const T* from = partial + other * size;
      for (i64 k = even_cut(size, part, parts); k < last; ++k) partial[k] += from[k];
    }
  });
}

// grad [parts, F, D]: each part's share of X^T @ upstream; the whole ends in grad[0].
template <typename T>
void sparse_backward(const i64* indptr, const i64* columns, const T* values, i64 rows,
                     const T* upstream, T* grad, i64 features, i64 width, int parts) {
  in_parts(parts, [&](int part) {
    Kept<T> kept;
    T* own = grad + part * features * width;
    std::fill(own, own + features * width, T(0));
    const i64 last = balanced_cut(indptr, rows, part + 1, parts);
    for (i64 row = balanced_cut(indptr, rows, part, parts); row < last; ++row) {
      const i64 count = kept.gather(columns, values, indptr[row], indptr[row + 1]);
      const T* from = upstream + row * width;
      for (i64 k = 0; k < count; ++k) {
        T* to = own + kept.column[k] * width;
        const T v = kept.value[k];
        for (i64 d = 0; d < width; ++d) to[d] += v * from[d];
      }
    }
  });
  add_parts(grad, features * width, parts);
}

// One attention layer over one block of edges, CSR by target. Arrays, with H heads of C channels:
// features [rows_in, C, H], attention vectors [C, H], scores [rows, H], by edge [edges, H];
// output and upstream gradient [rows_out, H * C], or [rows_out, C] where heads are averaged.
template <typename T>
struct Layer {
  const i64 *indptr, *source, *edge;
  i64 rows_in, rows_out, heads, channels;
  const T *features, *att_source, *att_target;
  T slope;
  bool average;
  int parts;
};

// N of the heads at a time, in the lanes of one register; N divides their number.
template <typename T, int N>
struct Attention {
  using V = Lanes<T, N>;
  using Real = typename V::Real;
  const Layer<T>& a;
  const i64 c, h, width;
  explicit Attention(const Layer<T>& layer)
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

  // coefficient [edges, H] becomes the softmax, negative where dropped: its sign is the mask.
  void forward(const T* bias, T* out, T* score_source, T* score_target, T* coefficient,
               Mask mask, T scale) const {
    each_group([&](int part, i64 head) {
      const i64 last = even_cut(a.rows_in, part + 1, a.parts);
      for (i64 row = even_cut(a.rows_in, part, a.parts); row < last; ++row) {
        const T* x = a.features + row * width + head;
        V::store(score_source + row * h + head, dot(x, a.att_source + head));
        if (row < a.rows_out)
          V::store(score_target + row * h + head, dot(x, a.att_target + head));
      }
    });
    in_parts(a.parts, [&](int part) {
      std::vector<T> sum(width);
      const i64 all = a.indptr[a.rows_out];
      const i64 last = balanced_cut(a.indptr, a.rows_out, part + 1, a.parts);
      for (i64 row = balanced_cut(a.indptr, a.rows_out, part, a.parts); row < last; ++row) {
        const i64 first = a.indptr[row], end = a.indptr[row + 1];
        for (i64 head = 0; head < h; head += N) {
          const Real own = V::load(score_target + row * h + head);
          softmax(first, end, head, score_source, own, coefficient, mask);
          const Edges edges{a.source, nullptr, first, end, all};
          collect(edges, coefficient + head, h, scale, a.features + head, sum.data() + head);
        }
        finish(sum.data(), bias, out + row * (a.average ? c : width));
      }
    });
  }

  // The softmax over the edges of one target.
  void softmax(i64 first, i64 end, i64 head, const T* score_source, Real own, T* coefficient,
               Mask mask) const {
    Real peak = Real{} - INFINITY, total = {};
    for (i64 e = first; e < end; ++e) {
      const Real raw = V::load(score_source + a.source[e] * h + head) + own;
      const Real score = raw * bend(raw);
      peak = peak > score ? peak : score;
      V::store(coefficient + e * h + head, score);
    }
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
    const i64 *from, *number;
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

  // The upstream gradient with heads innermost: lanes [rows_out, C, H].
  void to_lanes(const T* upstream, T* lanes) const {
    in_parts(a.parts, [&](int part) {
      const i64 last = even_cut(a.rows_out, part + 1, a.parts);
      for (i64 row = even_cut(a.rows_out, part, a.parts); row < last; ++row) {
        const T* __restrict from = upstream + row * (a.average ? c : width);
        T* __restrict to = lanes + row * width;
        for (i64 k = 0; k < c; ++k)
          for (i64 i = 0; i < h; ++i)
            to[k * h + i] = a.average ? from[k] / static_cast<T>(h) : from[i * c + k];
      }
    });
  }

  // By target: pairs [edges, 2, H] of the coefficient and the gradient of the edge's score
  // before the leaky ReLU, side by side because the way by source reads them in any order.
  void backward_scores(const T* lanes, const T* score_source, const T* score_target,
                       const T* coefficient, T scale, T* pairs, T* grad_target) const {
    each_group([&](int part, i64 head) {
      const i64 all = a.indptr[a.rows_out];
      const i64 last = balanced_cut(a.indptr, a.rows_out, part + 1, a.parts);
      for (i64 row = balanced_cut(a.indptr, a.rows_out, part, a.parts); row < last; ++row) {
        const i64 first = a.indptr[row], end = a.indptr[row + 1];
        const T* upstream = lanes + row * width + head;
        Real through = {}, sum = {};
        for (i64 e = first; e < end; ++e) {
          fetch(a.features + a.source[std::min(e + AHEAD, all - 1)] * width + head, width);
          const Real alpha = V::load(coefficient + e * h + head);
          Real grad = dot(a.features + a.source[e] * width + head, upstream) * scale;
          grad = alpha < 0 ? Real{} : grad;
          through += alpha * grad;
          V::store(pairs + e * 2 * h + head, alpha);
          V::store(pairs + (e * 2 + 1) * h + head, grad);
        }
        const Real own = V::load(score_target + row * h + head);
        for (i64 e = first; e < end; ++e) {
          const Real alpha = V::load(coefficient + e * h + head);
          const Real raw = V::load(score_source + a.source[e] * h + head) + own;
          Real grad = V::load(pairs + (e * 2 + 1) * h + head) - through;
          grad *= (alpha < 0 ? -alpha : alpha) * bend(raw);
          sum += grad;
          V::store(pairs + (e * 2 + 1) * h + head, grad);
        }
        V::store(grad_target + row * h + head, sum);
      }
    });
  }

  // By source, with edge numbers `order` and the rows `target` they lead to: grad_features [rows_in, C, H]; grad_attention [parts, 2, C, H], the sum in its
  // first part, is the two attention vectors'.
  void backward_features(const i64* by_source, const i64* order, const i64* target,
                         const T* lanes, const T* pairs, T scale, const T* grad_target,
                         T* grad_features, T* grad_attention) const {
    each_group([&](int part, i64 head) {
      T* own = grad_attention + part * 2 * width;
      if (head == 0) std::fill(own, own + 2 * width, T(0));
      const i64 all = by_source[a.rows_in];
      const i64 last = balanced_cut(by_source, a.rows_in, part + 1, a.parts);
      for (i64 row = balanced_cut(by_source, a.rows_in, part, a.parts); row < last; ++row) {
        const T* x = a.features + row * width + head;
        T* to = grad_features + row * width + head;
        const Edges edges{target, order, by_source[row], by_source[row + 1], all};
        collect(edges, pairs + head, 2 * h, scale, lanes + head, to);
        Real from_source = {};
        for (i64 place = edges.first; place < edges.end; ++place)
          from_source += V::load(pairs + (order[place] * 2 + 1) * h + head);
        add(from_source, a.att_source + head, to);
        add(from_source, x, own + head);
        if (row < a.rows_out) {
          const Real from_target = V::load(grad_target + row * h + head);
          add(from_target, a.att_target + head, to);
          add(from_target, x, own + width + head);
        }
      }
    });
    add_parts(grad_attention, 2 * width, a.parts);
  }
};

template <typename T, typename Body>
void with_heads(const Layer<T>& layer, Body body) {
  if (layer.heads % 8 == 0) body(Attention<T, 8>(layer));
  else if (layer.heads % 4 == 0) body(Attention<T, 4>(layer));
  else body(Attention<T, 1>(layer));
}

}  // namespace

// The same functions for float and double; the sizes of all arrays stand above.
#define GAT_FUNCTIONS(T, SUFFIX)                                                                \
  void drop_rows_##SUFFIX(const T* x, const i64* ids, T* out, i64 rows, i64 width, Mask mask,   \
                          T scale, int parts) {                                                 \
    drop_rows(x, ids, out, rows, width, mask, scale, parts);                                    \
  }                                                                                             \
  void drop_entries_##SUFFIX(const T* x, const i64* ids, T* out, i64 count, Mask mask, T scale, \
                             int parts) {                                                       \
    drop_entries(x, ids, out, count, mask, scale, parts);                                       \
  }                                                                                             \
  void sparse_forward_##SUFFIX(const i64* indptr, const i64* columns, const T* values,          \
                               i64 rows, const T* weight, T* out, i64 width, int parts) {       \
    sparse_forward(indptr, columns, values, rows, weight, out, width, parts);                   \
  }                                                                                             \
  void sparse_backward_##SUFFIX(const i64* indptr, const i64* columns, const T* values,         \
                                i64 rows, const T* upstream, T* grad, i64 features, i64 width,  \
                                int parts) {                                                    \
    sparse_backward(indptr, columns, values, rows, upstream, grad, features, width, parts);     \
  }                                                                                             \
  void attend_forward_##SUFFIX(const Layer<T>* layer, const T* bias, T* out, T* score_source,   \
                               T* score_target, T* coefficient, Mask mask, T scale) {           \
    with_heads(*layer, [=](auto attention) {                                                    \
      attention.forward(bias, out, score_source, score_target, coefficient, mask, scale);       \
    });                                                                                         \
  }                                                                                             \
  void attend_backward_##SUFFIX(                                                                \
      const Layer<T>* layer, const i64* by_source, const i64* order, const i64* target,         \
      const T* upstream, const T* score_source, const T* score_target, const T* coefficient,    \
      T scale, T* lanes, T* pairs, T* grad_target, T* grad_features, T* grad_attention) {  \
    with_heads(*layer, [=](auto attention) {                                                    \
      attention.to_lanes(upstream, lanes);                                                      \
      attention.backward_scores(lanes, score_source, score_target, coefficient, scale,          \
                                pairs, grad_target);                                            \
      attention.backward_features(by_source, order, target, lanes, pairs, scale, grad_target,   \
                                  grad_features, grad_attention);                               \
    });                                                                                         \
  }

extern "C" {
// Whether the compiler had OpenMP; without it every number of threads is one.
int has_threads() {
#ifdef _OPENMP
  return 1;
#else
  return 0;
#endif
}

GAT_FUNCTIONS(float, f32)
GAT_FUNCTIONS(double, f64)
}
