// Neighbours sampled for the layers of one mini-batch, and the local numbers of the nodes they lead to.
//
// Random numbers are a counter's (`picks.h`): the seed is the key; node, step, layer and place are the
// counter. So a sample depends on no thread, no rank and no earlier number.
// Nodes are numbered zone by zone, seeds first, then those that each layer reaches, ascending: the
// rows that come out of a layer are the first of those that enter it. Which nodes are reached is a
// bit of each; there is no table of hashes.

#include <omp.h>

#include "picks.h"
#include "sorted_edges.h"

namespace {

// In place of a layer's number, that of the first negative of a link: no model has so many layers.
constexpr u32 NEGATIVES = 1u << 31;

// A set of nodes.
struct Bits {
  std::vector<u64> words;
  explicit Bits(i64 nodes) : words((nodes + 63) / 64) {}
  void add(i64 node) { words[node / 64] |= u64{1} << (node % 64); }
  void remove(i64 node) { words[node / 64] &= ~(u64{1} << (node % 64)); }
  bool has(i64 node) const { return words[node / 64] >> (node % 64) & 1; }
};

// Edges that a mini-batch must not use, by their numbers in the graph, ascending; those of a node
// follow one another. A bit marks nodes without any.
struct Left {
  std::vector<i64> out, nodes;
  Bits some;
  explicit Left(i64 nodes) : some(nodes) {}

  void set(const i64* edges, const i64* targets, i64 count) {
    for (i64 node : nodes) some.remove(node);
    out.assign(edges, edges + count);
    nodes.assign(targets, targets + count);
    for (i64 node : nodes) some.add(node);
  }
  // Those among the edges `first` to `end` - 1.
  std::pair<const i64*, const i64*> among(i64 first, i64 end) const {
    const i64* begin = out.data();
    const i64* last = begin + out.size();
    const i64* from = std::lower_bound(begin, last, first);
    return {from, std::lower_bound(from, last, end)};
  }
};

// What is kept from layer to layer of one mini-batch, and used again for the next.
struct Sampler {
  i64 nodes;
  // Nodes of the mini-batch, and how many they are; of each its local number.
  Bits seen;
  i64 count = 0;
  std::vector<i32> local;
  // Nodes that a layer leads to, as each thread found them.
  std::vector<Bits> reached;
  Left left;

  explicit Sampler(i64 nodes) : nodes(nodes), seen(nodes), local(nodes), left(nodes) {}

  void need(i64 parts) {
    while (static_cast<int>(reached.size()) < parts) reached.emplace_back(nodes);
  }
  // Nodes that were reached for the first time get the next numbers, ascending, and follow in
  // `list`.
  void number(i64* list, i64 parts) {
    const i64 words = static_cast<i64>(seen.words.size());
    std::vector<i64> first(parts + 1);
    in_parts_if_worth(words * 2, parts, [&](int part) {
      const i64 last = even_cut(words, part + 1, parts);
      for (i64 word = even_cut(words, part, parts); word < last; ++word) {
        u64 found = 0;
        for (Bits& each : reached) found |= each.words[word], each.words[word] = 0;
        reached[0].words[word] = found &= ~seen.words[word];
        first[part + 1] += __builtin_popcountll(found);
      }
    });
    first[0] = count;
    for (int part = 0; part < parts; ++part) first[part + 1] += first[part];
    in_parts_if_worth((first[parts] - count) * 2 + words, parts, [&](int part) {
      i64 next = first[part];
      const i64 last = even_cut(words, part + 1, parts);
      for (i64 word = even_cut(words, part, parts); word < last; ++word) {
        u64& found = reached[0].words[word];
        seen.words[word] |= found;
        for (; found; found &= found - 1) {
          const i64 node = word * 64 + __builtin_ctzll(found);
          local[node] = static_cast<i32>(next);
          list[next++] = node;
        }
      }
    });
    count = first[parts];
  }
};

// A graph by target, and how neighbours of a row of it are sampled.
struct LayerSampling {
  const i64* indptr;
  const i32* columns;
  i64 edges, fanout;
  Key key;
  // Of the mini-batch; none if no edge is left out.
  const Left* left;

  i64 degree(i64 node) const {
    const i64 first = indptr[node], end = indptr[node + 1];
    if (!leaves_out(node)) return end - first;
    const auto out = left->among(first, end);
    return end - first - (out.second - out.first);
  }
  bool leaves_out(i64 node) const { return left && left->some.has(node); }
  // Edges [count] into a node, numbered as if those left out did not exist, get their own numbers.
  // Of the edges left out, number k (from 0) has as many kept ones before it as its number less k.
  template <typename I>
  void skip(i64 node, I* edge, i64 count) const {
    if (!leaves_out(node)) return;
    const auto out = left->among(indptr[node], indptr[node + 1]);
    for (i64 e = 0; e < count; ++e)
      edge[e] += static_cast<I>(search(out.second - out.first, [&](i64 k) {
        return out.first[k] - k <= edge[e];
      }));
  }
};

LayerSampling of_minibatch(const Sampler& sampler, LayerSampling layer) {
  layer.left = sampler.left.out.empty() ? nullptr : &sampler.left;
  return layer;
}

// Rows sampled together; where their edges lie is anywhere, so memory is asked for a group ahead.
constexpr int GROUP = Picks::ROWS;

// What one thread samples.
struct RowSampler {
  const LayerSampling& d;
  Picks picks = {};
  std::vector<u32> picked = {}, others = {};

  explicit RowSampler(const LayerSampling& layer) : d(layer) {}

  // The edges of nodes [count], at most GROUP of them, from edge + starts[row] - starts[0] on:
  // numbers in the graph, ascending; that of the node to itself last.
  template <typename I>
  void sample(const i64* nodes, int count, const I* starts, I* edge) {
    const u32 k = static_cast<u32>(d.fanout);
    bool together[GROUP] = {}, any = false;
    for (int row = 0; row < count; ++row) {
      const i64 node = nodes[row], n = d.degree(node);
      together[row] = Picks::fits(static_cast<u32>(n), k);
      if (!together[row]) continue;
      any = true;
      picks.node[row] = static_cast<u32>(node), picks.n[row] = static_cast<u32>(n);
    }
    if (any) picks.choose(d.key, k);
    for (int row = 0; row < count; ++row) {
      const i64 node = nodes[row], first = d.indptr[node];
      I* to = edge + starts[row] - starts[0];
      if (together[row] && !picks.doubtful[row])
        for (u32 place = 0; place < k; ++place)
          to[place] = static_cast<I>(first + picks.picked[place][row]);
      else
        alone(node, to);
      const i64 sampled = starts[row + 1] - starts[row] - 1;
      d.skip(node, to, sampled);
      to[sampled] = static_cast<I>(d.edges + node);
    }
  }

 private:
  template <typename I>
  void alone(i64 node, I* edge) {
    const i64 first = d.indptr[node], all = d.degree(node);
    if (all <= d.fanout) {
      for (i64 k = 0; k < all; ++k) edge[k] = static_cast<I>(first + k);
      return;
    }
    RandomNumbers random{d.key, static_cast<u32>(node)};
    // Where a node has more neighbours alone: a fan-out may be far more than any node has.
    picked.resize(d.fanout);
    pick(random, static_cast<u32>(all), static_cast<u32>(d.fanout), picked.data(), others);
    for (i64 k = 0; k < d.fanout; ++k) edge[k] = static_cast<I>(first + picked[k]);
  }
};

// indptr_out [rows + 1] of the edges that `rows` nodes get, each with its edge to itself.
template <typename I>
void count_edges(const Sampler& sampler, const LayerSampling& layer, const i64* nodes, i64 rows,
                 I* indptr_out, i64) {
  const LayerSampling d = of_minibatch(sampler, layer);
  indptr_out[0] = 0;
  for (i64 row = 0; row < rows; ++row) {
    __builtin_prefetch(d.indptr + nodes[std::min(row + GROUP, rows - 1)]);
    const i64 own = 1 + std::min(d.degree(nodes[row]), d.fanout);
    indptr_out[row + 1] = static_cast<I>(indptr_out[row] + own);
  }
}

// The edges of one layer into the first `rows` of `nodes`: local source and number in the graph
// (that of a node to itself is edges + node), row by row, the edge to itself last. Nodes that are
// reached for the first time follow in `nodes`; returns how many there are then.
template <typename I>
i64 sample_edges(Sampler& s, const LayerSampling& layer, i64* nodes, i64 rows, const I* indptr_out,
               I* source, I* edge, i64 parts) {
  const LayerSampling d = of_minibatch(s, layer);
  s.need(parts);
  const i64 edges = indptr_out[rows];
  in_parts_if_worth(edges * 8, parts, [&](int part) {
    RowSampler sampler(d);
    Bits& reached = s.reached[part];
    const i64 begin = even_cut(rows, part, parts), last = even_cut(rows, part + 1, parts);
    // Each group's sources, nodes as yet, are read when the next has been sampled: by then they have
    // come.
    i64 read = begin;
    const auto read_until = [&](i64 end) {
      for (; read < end; ++read) {
        const i64 own = indptr_out[read + 1] - 1;
        for (i64 e = indptr_out[read]; e < own; ++e) reached.add(source[e] = d.columns[edge[e]]);
        source[own] = static_cast<I>(nodes[read]);
      }
    };
    for (i64 first = begin; first < last; first += GROUP) {
      const i64 end = std::min(first + GROUP, last), ahead = std::min(end + GROUP, last);
      for (i64 row = end; row < ahead; ++row) __builtin_prefetch(d.indptr + nodes[row]);
      sampler.sample(nodes + first, static_cast<int>(end - first), indptr_out + first,
                  edge + indptr_out[first]);
      for (i64 row = first; row < end; ++row)
        for (i64 e = indptr_out[row]; e < indptr_out[row + 1] - 1; ++e)
          __builtin_prefetch(d.columns + edge[e]);
      read_until(first);
    }
    read_until(last);
  });
  s.number(nodes, parts);
  in_parts_if_worth(edges, parts, [&](int part) {
    const i64 last = even_cut(edges, part + 1, parts);
    for (i64 e = even_cut(edges, part, parts); e < last; ++e) source[e] = s.local[source[e]];
  });
  return s.count;
}

// A new mini-batch of `count` different seeds; nodes [count ...] become they, ascending. Of the graph
// `out` edges are left out: numbers `left` ascending, which lead to nodes `into`.
void begin_batch(Sampler& s, const i64* seeds, i64 count, i64* nodes, const i64* left,
                 const i64* into, i64 out, i64 parts) {
  std::fill(s.seen.words.begin(), s.seen.words.end(), u64{0});
  s.count = 0;
  s.need(parts);
  s.left.set(left, into, out);
  for (i64 k = 0; k < count; ++k) s.reached[0].add(seeds[k]);
  s.number(nodes, parts);
}

// For each of `links` a node in place of its second end, `count` times: none that is joined to its
// first end `kept`, nor that itself. Of the r-th of those nodes r is random; the others before it are
// as many as there are k among them, ascending, whose number less k is at most r.
void sample_negatives(const i64* indptr, const i32* columns, i64 nodes, u64 seed, u32 step,
                      const i64* kept, const i64* number, i64 links, i64 count, i64* sampled, i64) {
  for (i64 link = 0; link < links; ++link) {
    const i64 node = kept[link], degree = indptr[node + 1] - indptr[node];
    const i32* joined = columns + indptr[node];
    const i64 own = std::lower_bound(joined, joined + degree, static_cast<i32>(node)) - joined;
    const auto other = [&](i64 k) -> i64 {
      return k < own ? joined[k] : k == own ? node : joined[k - 1];
    };
    for (i64 place = 0; place < count; ++place) {
      const u32 layer = NEGATIVES + static_cast<u32>(place);
      RandomNumbers random{Key{seed, step, layer}, static_cast<u32>(number[link])};
      const i64 r = random.below(static_cast<u32>(nodes - degree - 1));
      *sampled++ = r + search(degree + 1, [&](i64 k) { return other(k) - k <= r; });
    }
  }
}

// How many threads the calling thread's loops have from now on; those of other threads keep theirs.
void set_threads(i64 count, i64) { omp_set_num_threads(static_cast<int>(count)); }

Sampler* create(i64 nodes, i64) { return new Sampler(nodes); }

void destroy(Sampler* sampler, i64) { delete sampler; }

}  // namespace

#define EDGE_FUNCTIONS(I, SUFFIX)                      \
  EXPORT(sampler_count_##SUFFIX, count_edges<I>)       \
  EXPORT(sampler_draw_##SUFFIX, sample_edges<I>)         \
  EXPORT(targets_##SUFFIX, targets<I>)                 \
  EXPORT(by_source_##SUFFIX, by_source<I>)

EDGE_FUNCTIONS(i32, i32)
EDGE_FUNCTIONS(i64, i64)
EXPORT(sampler_create, create)
EXPORT(sampler_destroy, destroy)
EXPORT(sampler_begin, begin_batch)
EXPORT(negatives, sample_negatives)
EXPORT(set_own_threads, set_threads)
