// Graph attention over edges sorted by target, forward and backward, for one machine's cores.
//
// Features of a node are stored channel by channel, heads innermost ([C, H]): all heads of a
// channel share one vector register, so no step needs a sum across lanes, and widths such as
// 8 heads of 3 classes vectorise as well as 8 of 8. Work is cut into as many parts as threads,
// always in the same places, and partial sums are added in order: same input, same bits.

#include "attention.h"

namespace {

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

// The entries of one row that are not zero; dropout leaves about half of them so.
template <typename T>
struct Kept {
  std::vector<i64> column;
  std::vector<T> value, dropped;
  // Of a dense row, whose first entry has the number `base`, after dropout.
  i64 gather(const T* from, i64 width, u32 base, const Mask& mask, T scale) {
    dropped.resize(width);
    each_vector<T>(width, [&](auto lanes, i64 k) {
      using V = Lanes<T, decltype(lanes)::value>;
      const typename V::Real zero = {}, given = V::load(from + k);
      // Products, so that NaN and infinity do not vanish where they are dropped.
      const auto kept = V::kept(mask, base + static_cast<u32>(k));
      V::store(dropped.data() + k, kept ? given * scale : given * zero);
    });
    column.resize(width);
    value.resize(width);
    i64 count = 0;
    for (i64 k = 0; k < width; ++k) {
      column[count] = k;
      value[count] = dropped[k];
      count += dropped[k] != T(0);
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

// The same of dropout of dense x [rows, F], whose rows are `ids` of the full graph.
template <typename T>
void dropped_forward(const T* x, const i64* ids, i64 rows, i64 features, const T* weight, T* out,
                     i64 width, Mask mask, T scale, bool* finite, int parts) {
  in_parts(parts, [&](int part) {
    Kept<T> kept;
    Watch<T> watch(finite);
    const Mask own = mask;
    const i64 last = even_cut(rows, part + 1, parts);
    for (i64 row = even_cut(rows, part, parts); row < last; ++row) {
      const u32 base = static_cast<u32>(ids[row]) * static_cast<u32>(features);
      const i64 count = kept.gather(x + row * features, features, base, own, scale);
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

// The same of dropout of dense x.
template <typename T>
void dropped_backward(const T* x, const i64* ids, i64 rows, const T* upstream, T* grad,
                      i64 features, i64 width, Mask mask, T scale, bool finite, int parts) {
  in_parts(parts, [&](int part) {
    Kept<T> kept;
    const Mask own_mask = mask;
    T* own = grad + part * features * width;
    std::fill(own, own + features * width, T(0));
    const i64 last = even_cut(rows, part + 1, parts);
    for (i64 row = even_cut(rows, part, parts); row < last; ++row) {
      if (finite && all_zero(upstream + row * width, width)) continue;
      const u32 base = static_cast<u32>(ids[row]) * static_cast<u32>(features);
      const i64 count = kept.gather(x + row * features, features, base, own_mask, scale);
      add_row(kept, count, upstream + row * width, own, width);
    }
  });
  add_parts(grad, features * width, parts);
}

// Velickovic et al. 2018: an edge's score is the leaky ReLU of a number of its source and one of its
// target.
template <typename T, int N>
struct Attention : EdgeWise<T, N> {
  using Base = EdgeWise<T, N>;
  using Base::a, Base::c, Base::h, Base::width, Base::AHEAD;
  using typename Base::Edges, typename Base::Real, typename Base::V;
  explicit Attention(const Layer<T>& layer) : Base(layer) {}

  // `finite` becomes false where an output is not.
  void forward(const T* bias, T* out, T* score_source, T* score_target, T* coefficient,
               Mask mask, T scale, bool* finite) const {
    this->each_group([&](int part, i64 head) {
      const i64 last = even_cut(a.rows_in, part + 1, a.parts);
      for (i64 row = even_cut(a.rows_in, part, a.parts); row < last; ++row) {
        const T* x = a.features + row * width + head;
        V::store(score_source + row * h + head, this->dot(x, a.att_source + head));
        if (row < a.rows_out)
          V::store(score_target + row * h + head, this->dot(x, a.att_target + head));
      }
    });
    in_parts(a.parts, [&](int part) {
      std::vector<T> sum(width);
      Watch<T> watch(finite);
      const i64 all = a.indptr[a.rows_out];
      const i64 last = balanced_cut(a.indptr, a.rows_out, part + 1, a.parts);
      for (i64 row = balanced_cut(a.indptr, a.rows_out, part, a.parts); row < last; ++row) {
        const i64 first = a.indptr[row], end = a.indptr[row + 1];
        for (i64 head = 0; head < h; head += N) {
          const Real own = V::load(score_target + row * h + head);
          scores(first, end, head, score_source, own, coefficient, mask);
          const Edges edges{a.source, nullptr, first, end, all};
          this->collect(edges, coefficient + head, h, scale, a.features + head, sum.data() + head);
        }
        watch.see(sum.data(), width);
        this->finish(sum.data(), bias, out + row * (a.average ? c : width));
      }
    });
  }

  // The scores of one target's edges, and their softmax.
  void scores(i64 first, i64 end, i64 head, const T* score_source, Real own, T* coefficient,
              Mask mask) const {
    Real peak = Real{} - INFINITY;
    for (i64 e = first; e < end; ++e) {
      const Real raw = V::load(score_source + a.source[e] * h + head) + own;
      const Real score = raw * this->bend(raw);
      peak = peak > score ? peak : score;
      V::store(coefficient + e * h + head, score);
    }
    this->softmax(first, end, head, peak, coefficient, mask);
  }

  // By target: pairs [edges, 2, H] of the coefficient and the gradient of the edge's score
  // before the leaky ReLU, side by side because the way by source reads them in any order. Those
  // of targets without a gradient are not written.
  void backward_scores(const T* lanes, const Marks& marks, const T* score_source,
                       const T* score_target, const T* coefficient, T scale, T* pairs,
                       T* grad_target) const {
    this->each_group([&](int part, i64 head) {
      const i64 all = a.indptr[a.rows_out];
      const i64 last = balanced_cut(a.indptr, a.rows_out, part + 1, a.parts);
      for (i64 row = balanced_cut(a.indptr, a.rows_out, part, a.parts); row < last; ++row) {
        if (!marks[row]) {
          V::store(grad_target + row * h + head, Real{});
          continue;
        }
        const i64 first = a.indptr[row], end = a.indptr[row + 1];
        const T* upstream = lanes + row * width + head;
        Real through = {}, sum = {};
        for (i64 e = first; e < end; ++e) {
          this->fetch(a.features + a.source[std::min(e + AHEAD, all - 1)] * width + head, width);
          const Real alpha = V::load(coefficient + e * h + head);
          Real grad = this->dot(a.features + a.source[e] * width + head, upstream) * scale;
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
          grad *= (alpha < 0 ? -alpha : alpha) * this->bend(raw);
          sum += grad;
          V::store(pairs + (e * 2 + 1) * h + head, grad);
        }
        V::store(grad_target + row * h + head, sum);
      }
    });
  }

  // By source, with edge numbers `order` and the rows `target` they lead to: grad_features
  // [rows_in, C, H]; grad_attention [parts, 2, C, H], the sum in its first part, is the two
  // attention vectors'.
  void backward_features(const i64* by_source, const i64* order, const i64* target,
                         const T* lanes, const Marks& marks, const T* pairs, T scale,
                         const T* grad_target, T* grad_features, T* grad_attention) const {
    in_parts(a.parts, [&](int part) {
      T* own = grad_attention + part * 2 * width;
      std::fill(own, own + 2 * width, T(0));
      const MarkedEdges marked(by_source, order, target, a.rows_in, part, a.parts, marks);
      for (i64 head = 0; head < h; head += N) for (i64 row = marked.row; row < marked.last; ++row) {
        const T* x = a.features + row * width + head;
        T* to = grad_features + row * width + head;
        const Edges edges = marked.template of<Edges>(row);
        this->collect(edges, pairs + head, 2 * h, scale, lanes + head, to);
        Real from_source = {};
        for (i64 place = edges.first; place < edges.end; ++place)
          from_source += V::load(pairs + (edges.number[place] * 2 + 1) * h + head);
        if (edges.first < edges.end) {
          this->add(from_source, a.att_source + head, to);
          this->add(from_source, x, own + head);
        }
        if (row < a.rows_out && marks[row]) {
          const Real from_target = V::load(grad_target + row * h + head);
          this->add(from_target, a.att_target + head, to);
          this->add(from_target, x, own + width + head);
        }
      }
    });
    add_parts(grad_attention, 2 * width, a.parts);
  }
};

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
                               i64 rows, const T* weight, T* out, i64 width, bool* finite,      \
                               int parts) {                                                     \
    sparse_forward(indptr, columns, values, rows, weight, out, width, finite, parts);           \
  }                                                                                             \
  void sparse_backward_##SUFFIX(const i64* indptr, const i64* columns, const T* values,         \
                                i64 rows, const T* upstream, T* grad, i64 features, i64 width,  \
                                bool finite, int parts) {                                       \
    sparse_backward(indptr, columns, values, rows, upstream, grad, features, width, finite,     \
                    parts);                                                                     \
  }                                                                                             \
  void dropped_forward_##SUFFIX(const T* x, const i64* ids, i64 rows, i64 features,             \
                                const T* weight, T* out, i64 width, Mask mask, T scale,         \
                                bool* finite, int parts) {                                      \
    dropped_forward(x, ids, rows, features, weight, out, width, mask, scale, finite, parts);    \
  }                                                                                             \
  void dropped_backward_##SUFFIX(const T* x, const i64* ids, i64 rows, const T* upstream,       \
                                 T* grad, i64 features, i64 width, Mask mask, T scale,          \
                                 bool finite, int parts) {                                      \
    dropped_backward(x, ids, rows, upstream, grad, features, width, mask, scale, finite,        \
                     parts);                                                                    \
  }                                                                                             \
  void attend_forward_##SUFFIX(const Layer<T>* layer, const T* bias, T* out, T* score_source,   \
                               T* score_target, T* coefficient, Mask mask, T scale,             \
                               bool* finite) {                                                  \
    with_heads<T, Attention>(*layer, [=](auto attention) {                                      \
      attention.forward(bias, out, score_source, score_target, coefficient, mask, scale,        \
                        finite);                                                                \
    });                                                                                         \
  }                                                                                             \
  void attend_backward_##SUFFIX(                                                                \
      const Layer<T>* layer, const i64* by_source, const i64* order, const i64* target,         \
      const T* upstream, const T* score_source, const T* score_target, const T* coefficient,    \
      bool finite, T scale, T* lanes, T* pairs, T* grad_target, T* grad_features,               \
      T* grad_attention) {                                                                      \
    with_heads<T, Attention>(*layer, [=](auto attention) {                                      \
      const Marks marks = attention.to_lanes(upstream, finite, lanes);                          \
      attention.backward_scores(lanes, marks, score_source, score_target, coefficient, scale,   \
                                pairs, grad_target);                                            \
      attention.backward_features(by_source, order, target, lanes, marks, pairs, scale,         \
                                  grad_target, grad_features, grad_attention);                  \
    });                                                                                         \
  }

extern "C" {
GAT_FUNCTIONS(float, f32)
GAT_FUNCTIONS(double, f64)
}
