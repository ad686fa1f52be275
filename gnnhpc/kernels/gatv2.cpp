// GATv2's attention over edges sorted by target, forward and backward (Brody et al. 2022, eq. 7):
// an edge's score is att . leaky_relu(h_source + g_target), so it is an edge's own, whole.
//
// The layer's `features` are h [rows_in, C, H], `att_target` is g [rows_out, C, H], `att_source`
// the attention vector [C, H].

#include "attention.h"

namespace {

template <typename T, typename I, int N>
struct AttentionV2 : EdgeWise<T, I, N> {
  using Base = EdgeWise<T, I, N>;
  using Base::a, Base::c, Base::h, Base::width, Base::AHEAD;
  using typename Base::Edges, typename Base::Real, typename Base::V;
  explicit AttentionV2(const Layer<T, I>& layer) : Base(layer) {}

  // Both ends' sum in channel k, before the leaky ReLU; all pointers from their first head.
  static Real both(const T* source, const T* target, i64 k) {
    return V::load(source + k) + V::load(target + k);
  }

  Real score(const T* source, const T* target, const T* att) const {
    Real sum = {};
    for (i64 k = 0; k < width; k += h) {
      const Real z = both(source, target, k);
      sum += V::load(att + k) * z * this->bend(z);
    }
    return sum;
  }

  // coefficient [edges, H] becomes the softmax, negative where dropped; `finite` becomes false where
  // an output is not.
  void forward(const T* bias, T* out, T* coefficient, Mask mask, T scale, bool* finite) const {
    in_parts(a.parts, [&](int part) {
      std::vector<T> sum(width);
      Watch<T> watch(finite);
      const i64 all = a.indptr[a.rows_out];
      const i64 last = balanced_cut(a.indptr, a.rows_out, part + 1, a.parts);
      for (i64 row = balanced_cut(a.indptr, a.rows_out, part, a.parts); row < last; ++row) {
        const i64 first = a.indptr[row], end = a.indptr[row + 1];
        for (i64 head = 0; head < h; head += N) {
          const T* target = a.att_target + row * width + head;
          Real peak = Real{} - INFINITY;
          for (i64 e = first; e < end; ++e) {
            this->fetch(a.features + a.source[std::min(e + AHEAD, all - 1)] * width + head, width);
            const T* source = a.features + a.source[e] * width + head;
            const Real found = score(source, target, a.att_source + head);
            peak = peak > found ? peak : found;
            V::store(coefficient + e * h + head, found);
          }
          this->softmax(first, end, head, peak, coefficient, mask);
          const Edges edges{a.source, nullptr, first, end, all};
          this->collect(edges, coefficient + head, h, scale, a.features + head, sum.data() + head);
        }
        watch.see(sum.data(), width);
        this->finish(sum.data(), bias, out + row * (a.average ? c : width));
      }
    });
  }

  // By target: pairs [edges, 2, H] of the coefficient and the gradient of the edge's score,
  // grad_target [rows_out, C, H]; grad_att [parts, C, H], whose sum in the first part is the whole.
  // The pairs of targets without a gradient are not written.
  void backward_scores(const T* lanes, const Marks& marks, const T* coefficient, T scale, T* pairs,
                       T* grad_target, T* grad_att) const {
    this->each_group([&](int part, i64 head) {
      T* own_att = grad_att + part * width;
      if (head == 0) std::fill(own_att, own_att + width, T(0));
      const i64 last = balanced_cut(a.indptr, a.rows_out, part + 1, a.parts);
      for (i64 row = balanced_cut(a.indptr, a.rows_out, part, a.parts); row < last; ++row) {
        T* to = grad_target + row * width + head;
        for (i64 k = 0; k < width; k += h) V::store(to + k, Real{});
        if (!marks[row]) continue;
        const i64 first = a.indptr[row], end = a.indptr[row + 1];
        const T* upstream = lanes + row * width + head;
        const T* target = a.att_target + row * width + head;
        const Real through = gradients_of_coefficients(first, end, head, upstream, coefficient,
                                                       scale, pairs);
        for (i64 e = first; e < end; ++e) {
          const Real alpha = V::load(coefficient + e * h + head);
          Real grad = V::load(pairs + (e * 2 + 1) * h + head) - through;
          grad *= alpha < 0 ? -alpha : alpha;
          V::store(pairs + (e * 2 + 1) * h + head, grad);
          through_score(a.features + a.source[e] * width + head, target, head, grad, to, own_att);
        }
      }
    });
    add_parts(grad_att, width, a.parts);
  }

  // The softmax's mean of its gradient over one target's edges; each edge's pair is written.
  Real gradients_of_coefficients(i64 first, i64 end, i64 head, const T* upstream,
                                 const T* coefficient, T scale, T* pairs) const {
    Real through = {};
    for (i64 e = first; e < end; ++e) {
      const Real alpha = V::load(coefficient + e * h + head);
      Real grad = this->dot(a.features + a.source[e] * width + head, upstream) * scale;
      grad = alpha < 0 ? Real{} : grad;
      through += alpha * grad;
      V::store(pairs + e * 2 * h + head, alpha);
      V::store(pairs + (e * 2 + 1) * h + head, grad);
    }
    return through;
  }

  // One edge's score, whose gradient is `grad`: adds to those of its target and of the vector.
  void through_score(const T* source, const T* target, i64 head, Real grad, T* of_target,
                     T* of_att) const {
    for (i64 k = 0; k < width; k += h) {
      const Real z = both(source, target, k), slope = this->bend(z);
      V::store(of_target + k,
               V::load(of_target + k) + grad * slope * V::load(a.att_source + head + k));
      V::store(of_att + head + k, V::load(of_att + head + k) + grad * slope * z);
    }
  }

  // By source, with edge numbers `order` and the rows `target` they lead to: grad [rows_in, C, H].
  void backward_features(const I* by_source, const I* order, const I* target,
                         const T* lanes, const Marks& marks, const T* pairs, T scale,
                         T* grad_features) const {
    in_parts(a.parts, [&](int part) {
      const MarkedEdges<I> marked(by_source, order, target, a.rows_in, part, a.parts, marks);
      for (i64 head = 0; head < h; head += N) for (i64 row = marked.row; row < marked.last; ++row) {
        const T* att = a.att_source + head;
        const T* x = a.features + row * width + head;
        T* to = grad_features + row * width + head;
        const Edges edges = marked.template of<Edges>(row);
        this->collect(edges, pairs + head, 2 * h, scale, lanes + head, to);
        for (i64 place = edges.first; place < edges.end; ++place) {
          const T* end = a.att_target + edges.from[place] * width + head;
          const Real grad = V::load(pairs + (edges.number[place] * 2 + 1) * h + head);
          for (i64 k = 0; k < width; k += h) {
            const Real slope = this->bend(both(x, end, k));
            V::store(to + k, V::load(to + k) + grad * slope * V::load(att + k));
          }
        }
      }
    });
  }
};

}  // namespace

// The same functions for float and double, and for edges numbered in 32 and in 64 bits; the sizes of
// all arrays stand above.
#define GATV2_FUNCTIONS(T, I, SUFFIX)                                                            \
  void attend_forward_##SUFFIX(const Layer<T, I>* layer, const T* bias, T* out, T* coefficient,  \
                               Mask mask, T scale, bool* finite) {                               \
    with_heads<AttentionV2>(*layer, [=](auto attention) {                                        \
      attention.forward(bias, out, coefficient, mask, scale, finite);                            \
    });                                                                                          \
  }                                                                                              \
  void attend_backward_##SUFFIX(const Layer<T, I>* layer, const I* by_source, const I* order,    \
                                const I* target, const T* upstream, const T* coefficient,        \
                                bool finite, T scale, T* lanes, T* pairs, T* grad_features,      \
                                T* grad_target, T* grad_att) {                                   \
    with_heads<AttentionV2>(*layer, [=](auto attention) {                                        \
      const Marks marks = attention.to_lanes(upstream, finite, lanes);                           \
      attention.backward_scores(lanes, marks, coefficient, scale, pairs, grad_target, grad_att); \
      attention.backward_features(by_source, order, target, lanes, marks, pairs, scale,          \
                                  grad_features);                                                \
    });                                                                                          \
  }

extern "C" {
GATV2_FUNCTIONS(float, i32, f32_i32)
GATV2_FUNCTIONS(float, i64, f32_i64)
GATV2_FUNCTIONS(double, i32, f64_i32)
GATV2_FUNCTIONS(double, i64, f64_i64)
}
