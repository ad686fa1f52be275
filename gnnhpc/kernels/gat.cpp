// Graph attention over edges sorted by target, forward and backward, for one machine's cores.
//
// Features of a node are stored channel by channel, heads innermost ([C, H]): all heads of a
// channel share one vector register, so no step needs a sum across lanes, and widths such as
// 8 heads of 3 classes vectorise as well as 8 of 8. Work is cut into as many parts as threads,
// always in the same places, and partial sums are added in order: same input, same bits.

#include "attention.h"
#include "dropped_products.h"

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

// Velickovic et al. 2018: an edge's score is the leaky ReLU of a number of its source and one of its
// target.
template <typename T, typename I, int N>
struct Attention : EdgeWise<T, I, N> {
  using Base = EdgeWise<T, I, N>;
  using Base::a, Base::c, Base::h, Base::width, Base::AHEAD;
  using typename Base::Edges, typename Base::Real, typename Base::V;
  explicit Attention(const Layer<T, I>& layer) : Base(layer) {}

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
  void backward_features(const I* by_source, const I* order, const I* target,
                         const T* lanes, const Marks& marks, const T* pairs, T scale,
                         const T* grad_target, T* grad_features, T* grad_attention) const {
    in_parts(a.parts, [&](int part) {
      T* own = grad_attention + part * 2 * width;
      std::fill(own, own + 2 * width, T(0));
      const MarkedEdges<I> marked(by_source, order, target, a.rows_in, part, a.parts, marks);
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

// Of features that are kept as S.
#define DROPPED_FUNCTIONS(T, S, SUFFIX)                                                      \
  void dropped_forward_##SUFFIX(const S* x, const i64* at, const i64* ids, i64 rows,         \
                                i64 features, const T* weight, T* out, i64 width, Mask mask, \
                                T scale, bool* finite, int parts) {                          \
    const DenseRows<T, S> given{x, at, ids, rows, features, mask, scale};                    \
    dropped_forward(given, weight, out, width, finite, parts);                               \
  }                                                                                          \
  void dropped_backward_##SUFFIX(const S* x, const i64* at, const i64* ids, i64 rows,        \
                                 i64 features, const T* upstream, T* grad, i64 width,        \
                                 Mask mask, T scale, bool finite, int parts) {               \
    const DenseRows<T, S> given{x, at, ids, rows, features, mask, scale};                    \
    dropped_backward(given, upstream, grad, width, finite, parts);                           \
  }

// The same functions for edges numbered in 32 and in 64 bits.
#define EDGE_FUNCTIONS(T, I, SUFFIX)                                                             \
  void attend_forward_##SUFFIX(const Layer<T, I>* layer, const T* bias, T* out, T* score_source, \
                               T* score_target, T* coefficient, Mask mask, T scale,              \
                               bool* finite) {                                                   \
    with_heads<Attention>(*layer, [=](auto attention) {                                          \
      attention.forward(bias, out, score_source, score_target, coefficient, mask, scale,         \
                        finite);                                                                 \
    });                                                                                          \
  }                                                                                              \
  void attend_backward_##SUFFIX(                                                                 \
      const Layer<T, I>* layer, const I* by_source, const I* order, const I* target,             \
      const T* upstream, const T* score_source, const T* score_target, const T* coefficient,     \
      bool finite, T scale, T* lanes, T* pairs, T* grad_target, T* grad_features,                \
      T* grad_attention) {                                                                       \
    with_heads<Attention>(*layer, [=](auto attention) {                                          \
      const Marks marks = attention.to_lanes(upstream, finite, lanes);                           \
      attention.backward_scores(lanes, marks, score_source, score_target, coefficient, scale,    \
                                pairs, grad_target);                                             \
      attention.backward_features(by_source, order, target, lanes, marks, pairs, scale,          \
                                  grad_target, grad_features, grad_attention);                   \
    });                                                                                          \
  }

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
  DROPPED_FUNCTIONS(T, T, SUFFIX)                                                               \
  EDGE_FUNCTIONS(T, i32, SUFFIX##_i32)                                                          \
  EDGE_FUNCTIONS(T, i64, SUFFIX##_i64)

extern "C" {
GAT_FUNCTIONS(float, f32)
GAT_FUNCTIONS(double, f64)
#ifdef HAS_HALVES
DROPPED_FUNCTIONS(float, Half, f16)
#endif
}
