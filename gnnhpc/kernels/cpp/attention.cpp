// Graph attention over edges sorted by target, forward and backward, for one machine's cores: GAT and
// GATv2 (V2), which differ in the score of an edge.

#include "attention.h"

namespace {

// GAT's score is the leaky ReLU of a number of the edge's source and one of its target (Velickovic et
// al. 2018). GATv2's is att . leaky_relu(h_source + g_target), with g the `targets` (Brody et al. 2022,
// equation 7).
template <bool V2, typename T, typename I, int N>
struct Scores : EdgeWise<T, I, N> {
  using Base = EdgeWise<T, I, N>;
  using Base::a, Base::c, Base::h, Base::width, Base::bend;
  using typename Base::Edges, typename Base::Real, typename Base::V;
  explicit Scores(const Layer<T, I>& layer) : Base(layer) {}

  // GAT's two numbers of every node.
  void score_nodes() const {
    in_parts(a.parts, [&](int part) {
      const i64 last = even_cut(a.rows_in, part + 1, a.parts);
      for (i64 head = 0; head < h; head += N)
        for (i64 row = even_cut(a.rows_in, part, a.parts); row < last; ++row) {
          const T* x = a.features + row * width + head;
          V::store(a.score_source + row * h + head, this->dot(x, a.att_source + head));
          if (row < a.rows_out)
            V::store(a.score_target + row * h + head, this->dot(x, a.att_target + head));
        }
    });
  }

  // What scores of edges into one row share: its number in GAT, its features in GATv2.
  auto of_target(i64 row, i64 head) const {
    if constexpr (V2) return a.targets + row * width + head;
    else return V::load(a.score_target + row * h + head);
  }

  // Before the leaky ReLU: GAT's number of edge e, and GATv2's in channel k, whose pointers are from
  // their first head.
  Real raw(i64 e, i64 head, Real target) const {
    return V::load(a.score_source + a.source[e] * h + head) + target;
  }
  static Real both(const T* source, const T* target, i64 k) {
    return V::load(source + k) + V::load(target + k);
  }

  template <typename Target>
  Real of_edge(i64 e, i64 head, Target target) const {
    if constexpr (V2) {
      this->fetch_source(e, head);
      const T *source = this->of_source(e, head), *att = a.att_source + head;
      Real sum = {};
      for (i64 k = 0; k < width; k += h) {
        const Real z = both(source, target, k);
        sum += V::load(att + k) * z * bend(z);
      }
      return sum;
    } else {
      const Real score = raw(e, head, target);
      return score * bend(score);
    }
  }

  // GATv2: what an edge's gradient adds to those of its target's features and of the vector.
  void add_to_target(i64 e, i64 head, Real grad, const T* target, T* of_target, T* of_vector) const {
    const T *source = this->of_source(e, head), *att = a.att_source + head;
    for (i64 k = 0; k < width; k += h) {
      const Real z = both(source, target, k), slope = bend(z);
      V::store(of_target + k, V::load(of_target + k) + grad * slope * V::load(att + k));
      V::store(of_vector + k, V::load(of_vector + k) + grad * slope * z);
    }
  }

  // What gradients of its edges' scores add to that of a source's features; in GAT that of its score
  // as a target, if it has one, does so too, and both add to those of the `vectors`.
  void add_to_source(i64 row, i64 head, const Edges& edges, const Marks& marks, T* vectors) const {
    const T *x = a.features + row * width + head, *att = a.att_source + head;
    T* to = a.grad_features + row * width + head;
    const auto gradient = [&](i64 place) {
      return V::load(a.pairs + (edges.number[place] * 2 + 1) * h + head);
    };
    if constexpr (V2) {
      for (i64 place = edges.first; place < edges.end; ++place) {
        const T* end = a.targets + edges.from[place] * width + head;
        const Real grad = gradient(place);
        for (i64 k = 0; k < width; k += h) {
          const Real slope = bend(both(x, end, k));
          V::store(to + k, V::load(to + k) + grad * slope * V::load(att + k));
        }
      }
    } else {
      Real from_source = {};
      for (i64 place = edges.first; place < edges.end; ++place) from_source += gradient(place);
      if (edges.first < edges.end) {
        this->add(from_source, att, to);
        this->add(from_source, x, vectors + head);
      }
      if (row < a.rows_out && marks[row]) {
        const Real from_target = V::load(a.grad_target + row * h + head);
        this->add(from_target, a.att_target + head, to);
        this->add(from_target, x, vectors + width + head);
      }
    }
  }
};

template <bool V2, typename T, typename I, int N>
void attend(const Scores<V2, T, I, N>& of, bool* finite, Mask mask) {
  using V = Lanes<T, N>;
  using Real = typename V::Real;
  const auto& a = of.a;
  in_parts(a.parts, [&](int part) {
    std::vector<T> sum(of.width);
    Watch<T> watch(finite);
    const i64 all = a.indptr[a.rows_out];
    const i64 last = balanced_cut(a.indptr, a.rows_out, part + 1, a.parts);
    for (i64 row = balanced_cut(a.indptr, a.rows_out, part, a.parts); row < last; ++row) {
      const i64 first = a.indptr[row], end = a.indptr[row + 1];
      for (i64 head = 0; head < of.h; head += N) {
        const auto target = of.of_target(row, head);
        Real peak = Real{} - INFINITY;
        for (i64 e = first; e < end; ++e) {
          const Real score = of.of_edge(e, head, target);
          peak = peak > score ? peak : score;
          V::store(a.coefficient + e * of.h + head, score);
        }
        of.softmax(first, end, head, peak, mask);
        of.collect({a.source, nullptr, first, end, all}, a.coefficient + head, of.h, a.scale,
                   a.features + head, sum.data() + head);
      }
      watch.see(sum.data(), of.width);
      of.finish(row, sum.data());
    }
  });
}

// Fills `pairs`, but those of targets without a gradient, and gradients of targets; in GATv2 each
// part's copy of that of the vector.
template <bool V2, typename T, typename I, int N>
void backward_targets(const Scores<V2, T, I, N>& of, const Marks& marks) {
  using V = Lanes<T, N>;
  using Real = typename V::Real;
  const auto& a = of.a;
  const i64 h = of.h, numbers = V2 ? of.width : h;
  in_parts(a.parts, [&](int part) {
    T* of_vector = a.grad_attention + part * of.width;
    if (V2) std::fill_n(of_vector, of.width, T(0));
    of.each_target(part, [&](i64 row, i64 head) {
      T* of_target = a.grad_target + row * numbers + head;
      for (i64 k = 0; k < numbers; k += h) V::store(of_target + k, Real{});
      if (!marks[row]) return;
      const auto target = of.of_target(row, head);
      const i64 first = a.indptr[row], end = a.indptr[row + 1];
      const T* upstream = a.lanes + row * of.width + head;
      Real through = {}, sum = {};
      for (i64 e = first; e < end; ++e) {
        of.fetch_source(e, head);
        const Real alpha = V::load(a.coefficient + e * h + head);
        Real grad = of.dot(of.of_source(e, head), upstream) * a.scale;
        grad = alpha < 0 ? Real{} : grad;
        through += alpha * grad;
        V::store(a.pairs + e * 2 * h + head, alpha);
        V::store(a.pairs + (e * 2 + 1) * h + head, grad);
      }
      for (i64 e = first; e < end; ++e) {
        const Real alpha = V::load(a.coefficient + e * h + head);
        Real share = alpha < 0 ? -alpha : alpha;
        if constexpr (!V2) share *= of.bend(of.raw(e, head, target));
        const Real grad = (V::load(a.pairs + (e * 2 + 1) * h + head) - through) * share;
        V::store(a.pairs + (e * 2 + 1) * h + head, grad);
        if constexpr (V2) of.add_to_target(e, head, grad, target, of_target, of_vector + head);
        else sum += grad;
      }
      if (!V2) V::store(of_target, sum);
    });
  });
}

// Fills gradients of sources, by the edges that start from each; in GAT each part's copy of those of
// the vectors.
template <bool V2, typename T, typename I, int N>
void backward_sources(const Scores<V2, T, I, N>& of, const Marks& marks) {
  const auto& a = of.a;
  in_parts(a.parts, [&](int part) {
    T* vectors = a.grad_attention + part * 2 * of.width;
    if (!V2) std::fill_n(vectors, 2 * of.width, T(0));
    const MarkedEdges marked(a.by_source, a.order, a.target, a.rows_in, part, a.parts, marks);
    for (i64 head = 0; head < of.h; head += N)
      for (i64 row = marked.row; row < marked.last; ++row) {
        const auto edges = marked.template of<typename EdgeWise<T, I, N>::Edges>(row);
        of.collect(edges, a.pairs + head, 2 * of.h, a.scale, a.lanes + head,
                   a.grad_features + row * of.width + head);
        of.add_to_source(row, head, edges, marks, vectors);
      }
  });
}

// body(Scores) with as many lanes as the number of heads and the machine's vectors allow.
template <bool V2, typename T, typename I, typename Body>
void with_heads(const Layer<T, I>& layer, Body body) {
  constexpr int MOST = std::min<int>(8, VECTOR_BYTES / sizeof(T));
  if (layer.heads % MOST == 0) body(Scores<V2, T, I, MOST>(layer));
  else if (layer.heads % 4 == 0) body(Scores<V2, T, I, 4>(layer));
  else body(Scores<V2, T, I, 1>(layer));
}

template <bool V2, typename T, typename I>
void forward(Layer<T, I>& layer, Mask mask, i64 parts) {
  layer.parts = parts, layer.finite = true;
  with_heads<V2>(layer, [&](const auto& scores) {
    if (!V2) scores.score_nodes();
    attend(scores, &layer.finite, mask);
  });
}

template <bool V2, typename T, typename I>
void backward(Layer<T, I>& layer, i64 parts) {
  layer.parts = parts;
  with_heads<V2>(layer, [&](const auto& scores) {
    const Marks marks = scores.to_lanes();
    backward_targets(scores, marks);
    backward_sources(scores, marks);
    add_parts(layer.grad_attention, (V2 ? 1 : 2) * scores.width, parts);
  });
}

}  // namespace

#define ATTENTION_FUNCTIONS(T, I, SUFFIX)                     \
  EXPORT(gat_forward_##SUFFIX, forward<false, T, I>)          \
  EXPORT(gat_backward_##SUFFIX, backward<false, T, I>)        \
  EXPORT(gatv2_forward_##SUFFIX, forward<true, T, I>)         \
  EXPORT(gatv2_backward_##SUFFIX, backward<true, T, I>)

ATTENTION_FUNCTIONS(float, i32, f32_i32)
ATTENTION_FUNCTIONS(float, i64, f32_i64)
ATTENTION_FUNCTIONS(double, i32, f64_i32)
ATTENTION_FUNCTIONS(double, i64, f64_i64)
