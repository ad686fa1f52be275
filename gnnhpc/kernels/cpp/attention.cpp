// Graph attention over edges sorted by target, forward and backward, for one machine's cores: GAT and
// GATv2, which differ in the score of an edge.

#include "attention.h"

namespace {

// Velickovic et al. 2018: the leaky ReLU of a number of the edge's source and one of its target.
template <typename T, typename I, int N>
struct Gat : EdgeWise<T, I, N> {
  using Base = EdgeWise<T, I, N>;
  using Base::a, Base::c, Base::h, Base::width, Base::dot;
  using typename Base::Edges, typename Base::Real, typename Base::V;
  struct Target {
    Real own, grad;
  };
  explicit Gat(const Layer<T, I>& layer) : Base(layer) {}

  // Both numbers of every node, before forward.
  void prepare() const {
    in_parts(a.parts, [&](int part) {
      const i64 last = even_cut(a.rows_in, part + 1, a.parts);
      for (i64 head = 0; head < h; head += N)
        for (i64 row = even_cut(a.rows_in, part, a.parts); row < last; ++row) {
          const T* x = a.features + row * width + head;
          V::store(a.score_source + row * h + head, dot(x, a.att_source + head));
          if (row < a.rows_out)
            V::store(a.score_target + row * h + head, dot(x, a.att_target + head));
        }
    });
  }

  Target of_target(i64 row, i64 head) const {
    return {V::load(a.score_target + row * h + head), Real{}};
  }
  Real raw(i64 e, i64 head, const Target& target) const {
    return V::load(a.score_source + a.source[e] * h + head) + target.own;
  }
  Real of_edge(i64 e, i64 head, const Target& target) const {
    const Real score = raw(e, head, target);
    return score * this->bend(score);
  }

  void begin(int) const {}
  Target begin_target(int, i64 row, i64 head) const {
    V::store(a.grad_target + row * h + head, Real{});
    return of_target(row, head);
  }
  Real slope(i64 e, i64 head, const Target& target) const {
    return this->bend(raw(e, head, target));
  }
  void add_edge(i64, i64, Real grad, Target& target) const { target.grad += grad; }
  void end_target(i64 row, i64 head, const Target& target) const {
    V::store(a.grad_target + row * h + head, target.grad);
  }

  // This part's copies of the gradients of both vectors.
  T* vectors(int part) const { return a.grad_attention + part * 2 * width; }
  void begin_sources(int part) const { std::fill_n(vectors(part), 2 * width, T(0)); }
  void add_to_source(int part, i64 row, i64 head, const Edges& edges, const Marks& marks) const {
    const T* x = a.features + row * width + head;
    T *to = a.grad_features + row * width + head, *own = vectors(part);
    Real from_source = {};
    for (i64 place = edges.first; place < edges.end; ++place)
      from_source += V::load(a.pairs + (edges.number[place] * 2 + 1) * h + head);
    if (edges.first < edges.end) {
      this->add(from_source, a.att_source + head, to);
      this->add(from_source, x, own + head);
    }
    if (row < a.rows_out && marks[row]) {
      const Real from_target = V::load(a.grad_target + row * h + head);
      this->add(from_target, a.att_target + head, to);
      this->add(from_target, x, own + width + head);
    }
  }
  void end() const { add_parts(a.grad_attention, 2 * width, static_cast<int>(a.parts)); }
};

// Brody et al. 2022, equation 7: att . leaky_relu(h_source + g_target), with g the `targets`.
template <typename T, typename I, int N>
struct Gatv2 : EdgeWise<T, I, N> {
  using Base = EdgeWise<T, I, N>;
  using Base::a, Base::c, Base::h, Base::width;
  using typename Base::Edges, typename Base::Real, typename Base::V;
  struct Target {
    const T* features;
    T *grad, *grad_vector;
  };
  explicit Gatv2(const Layer<T, I>& layer) : Base(layer) {}

  // Both ends' sum in channel k, before the leaky ReLU; all pointers from their first head.
  static Real both(const T* source, const T* target, i64 k) {
    return V::load(source + k) + V::load(target + k);
  }

  void prepare() const {}
  Target of_target(i64 row, i64 head) const {
    return {a.targets + row * width + head, nullptr, nullptr};
  }
  Real of_edge(i64 e, i64 head, const Target& target) const {
    this->fetch_source(e, head);
    const T *source = this->of_source(e, head), *att = a.att_source + head;
    Real sum = {};
    for (i64 k = 0; k < width; k += h) {
      const Real z = both(source, target.features, k);
      sum += V::load(att + k) * z * this->bend(z);
    }
    return sum;
  }

  // This part's copy of the gradient of the vector.
  T* vector(int part) const { return a.grad_attention + part * width; }
  void begin(int part) const { std::fill_n(vector(part), width, T(0)); }
  Target begin_target(int part, i64 row, i64 head) const {
    T* grad = a.grad_target + row * width + head;
    for (i64 k = 0; k < width; k += h) V::store(grad + k, Real{});
    return {a.targets + row * width + head, grad, vector(part) + head};
  }
  Real slope(i64, i64, const Target&) const { return Real{} + T(1); }
  void add_edge(i64 e, i64 head, Real grad, const Target& target) const {
    const T *source = this->of_source(e, head), *att = a.att_source + head;
    T *of_target = target.grad, *of_vector = target.grad_vector;
    for (i64 k = 0; k < width; k += h) {
      const Real z = both(source, target.features, k), slope = this->bend(z);
      V::store(of_target + k, V::load(of_target + k) + grad * slope * V::load(att + k));
      V::store(of_vector + k, V::load(of_vector + k) + grad * slope * z);
    }
  }
  void end_target(i64, i64, const Target&) const {}

  void begin_sources(int) const {}
  void add_to_source(int, i64 row, i64 head, const Edges& edges, const Marks&) const {
    const T *att = a.att_source + head, *x = a.features + row * width + head;
    T* to = a.grad_features + row * width + head;
    for (i64 place = edges.first; place < edges.end; ++place) {
      const T* end = a.targets + edges.from[place] * width + head;
      const Real grad = V::load(a.pairs + (edges.number[place] * 2 + 1) * h + head);
      for (i64 k = 0; k < width; k += h) {
        const Real slope = this->bend(both(x, end, k));
        V::store(to + k, V::load(to + k) + grad * slope * V::load(att + k));
      }
    }
  }
  void end() const { add_parts(a.grad_attention, width, static_cast<int>(a.parts)); }
};

template <template <typename, typename, int> class Score, typename T, typename I>
void forward(Layer<T, I>& layer, Mask mask, i64 parts) {
  layer.parts = parts, layer.finite = true;
  with_heads<Score>(layer, [&](auto score) {
    score.prepare();
    attend_forward(score, &layer.finite, mask);
  });
}

template <template <typename, typename, int> class Score, typename T, typename I>
void backward(Layer<T, I>& layer, i64 parts) {
  layer.parts = parts;
  with_heads<Score>(layer, [&](auto score) {
    const Marks marks = score.to_lanes();
    backward_targets(score, marks);
    backward_sources(score, marks);
    score.end();
  });
}

}  // namespace

#define ATTENTION_FUNCTIONS(T, I, SUFFIX)                     \
  EXPORT(gat_forward_##SUFFIX, forward<Gat, T, I>)            \
  EXPORT(gat_backward_##SUFFIX, backward<Gat, T, I>)          \
  EXPORT(gatv2_forward_##SUFFIX, forward<Gatv2, T, I>)        \
  EXPORT(gatv2_backward_##SUFFIX, backward<Gatv2, T, I>)

ATTENTION_FUNCTIONS(float, i32, f32_i32)
ATTENTION_FUNCTIONS(float, i64, f32_i64)
ATTENTION_FUNCTIONS(double, i32, f64_i32)
ATTENTION_FUNCTIONS(double, i64, f64_i64)
