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
#include <vector>

namespace {

using i64 = std::int64_t;
using u32 = std::uint32_t;

// The mask of one layer at one step: a hash of the entry's number, see gnnhpc/models/dropout.py.
struct Mask {
  u32 first, second, threshold;
  bool keeps(u32 x) const {
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

// exp for arguments at most 0, to a unit in the last place: 2^n times a polynomial on [-ln2/2, ln2/2].
inline float exponential(float x) {
  x = std::max(x, -87.0f);
  const float n = std::floor(x * 1.44269504088896341f + 0.5f);
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const std::int32_t bits = (static_cast<std::int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}
inline double exponential(double x) { return std::exp(x); }

template <typename T>
void drop_rows(const T* x, const i64* ids, T* out, i64 rows, i64 width, Mask mask, T scale,
               int parts) {
  in_parts(parts, [&](int part) {
    const i64 last = even_cut(rows, part + 1, parts);
    for (i64 row = even_cut(rows, part, parts); row < last; ++row) {
      const u32 base = static_cast<u32>(ids[row]) * static_cast<u32>(width);
      const T* from = x + row * width;
      T* to = out + row * width;
      for (i64 k = 0; k < width; ++k)
        to[k] = mask.keeps(base + static_cast<u32>(k)) ? from[k] * scale : T(0);
    }
  });
}

template <typename T>
void drop_entries(const T* x, const i64* ids, T* out, i64 count, Mask mask, T scale, int parts) {
  in_parts(parts, [&](int part) {
    const i64 last = even_cut(count, part + 1, parts);
    for (i64 k = even_cut(count, part, parts); k < last; ++k)
      out[k] = mask.keeps(static_cast<u32>(ids[k])) ? x[k] * scale : T(0);
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

// out [rows, D] = X [rows, F] @ weight [F, D], D columns at a time in registers.
template <typename T, int D>
void multiply_columns(const i64* column, const T* value, i64 count, const T* weight, T* out,
                      i64 stride) {
  T sum[D] = {};
  for (i64 k = 0; k < count; ++k) {
    const T* w = weight + column[k] * stride;
    const T v = value[k];
    for (int d = 0; d < D; ++d) sum[d] += v * w[d];
  }
  for (int d = 0; d < D; ++d) out[d] = sum[d];
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

constexpr int MAX_HEADS = 64;

// H is the number of heads where the compiler knows it, else 0.
template <typename T, int H>
struct Attention {
  static constexpr int ROOM = H ? H : MAX_HEADS;
  const Layer<T>& a;
  const i64 h, c, width;
  explicit Attention(const Layer<T>& layer)
      : a(layer), h(H ? H : layer.heads), c(layer.channels), width(h * c) {}

  // A head's dot product of two nodes' features.
  void dot(const T* __restrict x, const T* __restrict y, T* __restrict out) const {
    T sum[ROOM] = {};
    for (i64 k = 0; k < c; ++k)
      for (i64 i = 0; i < h; ++i) sum[i] += x[k * h + i] * y[k * h + i];
    for (i64 i = 0; i < h; ++i) out[i] = sum[i];
  }

  void add(const T* __restrict weight, const T* __restrict x, T* __restrict out) const {
    for (i64 k = 0; k < c; ++k)
      for (i64 i = 0; i < h; ++i) out[k * h + i] += weight[i] * x[k * h + i];
  }

  // coefficient [edges, H] becomes the softmax, negative where dropped: its sign is the mask.
  void forward(const T* bias, T* out, T* score_source, T* score_target, T* coefficient,
               Mask mask, T scale) const {
    in_parts(a.parts, [&](int part) {
      const i64 last = even_cut(a.rows_in, part + 1, a.parts);
      for (i64 row = even_cut(a.rows_in, part, a.parts); row < last; ++row) {
        const T* x = a.features + row * width;
        dot(x, a.att_source, score_source + row * h);
        if (row < a.rows_out) dot(x, a.att_target, score_target + row * h);
      }
    });
    in_parts(a.parts, [&](int part) {
      std::vector<T> sum(width);
      const i64 last = balanced_cut(a.indptr, a.rows_out, part + 1, a.parts);
      for (i64 row = balanced_cut(a.indptr, a.rows_out, part, a.parts); row < last; ++row) {
        softmax(row, score_source, score_target + row * h, coefficient);
        std::fill(sum.begin(), sum.end(), T(0));
        for (i64 e = a.indptr[row]; e < a.indptr[row + 1]; ++e) {
          T weight[ROOM];
          drop(e, coefficient + e * h, mask, scale, weight);
          add(weight, a.features + a.source[e] * width, sum.data());
        }
        finish(sum.data(), bias, out + row * (a.average ? c : width));
      }
    });
  }

  void softmax(i64 row, const T* score_source, const T* __restrict own,
               T* __restrict coefficient) const {
    const i64 first = a.indptr[row], end = a.indptr[row + 1];
    T peak[ROOM], total[ROOM] = {};
    for (i64 i = 0; i < h; ++i) peak[i] = -INFINITY;
    for (i64 e = first; e < end; ++e) {
      const T* __restrict other = score_source + a.source[e] * h;
      T* __restrict to = coefficient + e * h;
      for (i64 i = 0; i < h; ++i) {
        const T raw = other[i] + own[i];
        to[i] = raw > 0 ? raw : raw * a.slope;
        peak[i] = peak[i] > to[i] ? peak[i] : to[i];
      }
    }
    for (i64 e = first; e < end; ++e) {
      T* __restrict to = coefficient + e * h;
      for (i64 i = 0; i < h; ++i) {
        to[i] = exponential(to[i] - peak[i]);
        total[i] += to[i];
      }
    }
    for (i64 i = 0; i < h; ++i) total[i] = T(1) / total[i];
    for (i64 e = first; e < end; ++e)
      for (i64 i = 0; i < h; ++i) coefficient[e * h + i] *= total[i];
  }

  void drop(i64 e, T* __restrict coefficient, Mask mask, T scale, T* __restrict weight) const {
    const u32 base = static_cast<u32>(a.edge[e]) * static_cast<u32>(h);
    for (i64 i = 0; i < h; ++i) {
      const T alpha = coefficient[i];
      const bool keep = mask.keeps(base + static_cast<u32>(i));
      coefficient[i] = keep ? alpha : -alpha;
      weight[i] = keep ? alpha * scale : T(0);
    }
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

  // By target: grad_score [edges, H], the gradient of each edge's score before the leaky ReLU.
  void backward_scores(const T* lanes, const T* score_source, const T* score_target,
                       const T* coefficient, T scale, T* grad_score, T* grad_target) const {
    in_parts(a.parts, [&](int part) {
      const i64 last = balanced_cut(a.indptr, a.rows_out, part + 1, a.parts);
      for (i64 row = balanced_cut(a.indptr, a.rows_out, part, a.parts); row < last; ++row) {
        const i64 first = a.indptr[row], end = a.indptr[row + 1];
        const T* __restrict own = score_target + row * h;
        T through[ROOM] = {}, sum[ROOM] = {};
        for (i64 e = first; e < end; ++e) {
          const T* __restrict alpha = coefficient + e * h;
          T* __restrict to = grad_score + e * h;
          dot(a.features + a.source[e] * width, lanes + row * width, to);
          for (i64 i = 0; i < h; ++i) {
            to[i] = std::signbit(alpha[i]) ? T(0) : to[i] * scale;
            through[i] += std::abs(alpha[i]) * to[i];
          }
        }
        for (i64 e = first; e < end; ++e) {
          const T* __restrict alpha = coefficient + e * h;
          const T* __restrict other = score_source + a.source[e] * h;
          T* __restrict to = grad_score + e * h;
          for (i64 i = 0; i < h; ++i) {
            const T bend = other[i] + own[i] > 0 ? T(1) : a.slope;
            to[i] = std::abs(alpha[i]) * (to[i] - through[i]) * bend;
            sum[i] += to[i];
          }
        }
        for (i64 i = 0; i < h; ++i) grad_target[row * h + i] = sum[i];
      }
    });
  }

  // By source: grad_features [rows_in, C, H]; grad_attention [parts, 2, C, H], the sum in its
  // first part, is the two attention vectors'.
  void backward_features(const i64* by_source, const i64* order, const i64* target,
                         const T* lanes, const T* coefficient, T scale, const T* grad_score,
                         const T* grad_target, T* grad_features, T* grad_attention) const {
    in_parts(a.parts, [&](int part) {
      T* own = grad_attention + part * 2 * width;
      std::fill(own, own + 2 * width, T(0));
      const i64 last = balanced_cut(by_source, a.rows_in, part + 1, a.parts);
      for (i64 row = balanced_cut(by_source, a.rows_in, part, a.parts); row < last; ++row) {
        const T* x = a.features + row * width;
        T* to = grad_features + row * width;
        T from_source[ROOM] = {};
        std::fill(to, to + width, T(0));
        for (i64 place = by_source[row]; place < by_source[row + 1]; ++place) {
          const i64 e = order[place];
          T weight[ROOM];
          for (i64 i = 0; i < h; ++i) {
            const T alpha = coefficient[e * h + i];
            weight[i] = std::signbit(alpha) ? T(0) : alpha * scale;
            from_source[i] += grad_score[e * h + i];
          }
          add(weight, lanes + target[e] * width, to);
        }
        add(from_source, a.att_source, to);
        add(from_source, x, own);
        if (row < a.rows_out) {
          add(grad_target + row * h, a.att_target, to);
          add(grad_target + row * h, x, own + width);
        }
      }
    });
    add_parts(grad_attention, 2 * width, a.parts);
  }
};

// The usual eight heads in single precision have code of their own; the rest shares one.
template <typename Body>
void with_heads(const Layer<float>& layer, Body body) {
  if (layer.heads == 8) body(Attention<float, 8>(layer));
  else body(Attention<float, 0>(layer));
}

template <typename Body>
void with_heads(const Layer<double>& layer, Body body) {
  body(Attention<double, 0>(layer));
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
      T scale, T* lanes, T* grad_score, T* grad_target, T* grad_features, T* grad_attention) {  \
    with_heads(*layer, [=](auto attention) {                                                    \
      attention.to_lanes(upstream, lanes);                                                      \
      attention.backward_scores(lanes, score_source, score_target, coefficient, scale,          \
                                grad_score, grad_target);                                       \
      attention.backward_features(by_source, order, target, lanes, coefficient, scale,          \
                                  grad_score, grad_target, grad_features, grad_attention);      \
    });                                                                                         \
  }

extern "C" {
GAT_FUNCTIONS(float, f32)
GAT_FUNCTIONS(double, f64)
}
