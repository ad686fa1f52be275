// Neighbours drawn for the layers of one mini-batch, and the local numbers of the nodes they lead to.
//
// Every draw is a counter's (Philox 4x32-10, Salmon et al. 2011): the seed is the key; node, step,
// layer and draw are the counter. So a sample depends on no thread, no rank and no earlier draw.
// Nodes are numbered zone by zone, seeds first, then those that each layer reaches, ascending: the
// rows that come out of a layer are the first of those that enter it. Bits and popcounts number
// them; there is no table of hashes.

#include "csr_rows.h"

namespace {

using u64 = std::uint64_t;
using i32 = std::int32_t;

// Blocks of Philox 4x32-10 that are computed together, in the lanes of vectors.
constexpr int BLOCKS = 4;
using Words = VectorOf<u64, BLOCKS>::type;

// The numbers of counters {first, second, third, fourth + 0 to BLOCKS - 1}, four a block.
void philox(u32 key0, u32 key1, const u32 counter[4], u32 out[4 * BLOCKS]) {
  constexpr u64 LOW = 0xFFFFFFFFu;
  Words a = Words{} + counter[0], b = Words{} + counter[1], c = Words{} + counter[2];
  Words d = {};
  for (int block = 0; block < BLOCKS; ++block) d[block] = static_cast<u32>(counter[3] + block);
  for (int round = 0; round < 10; ++round) {
    const Words first = a * u64{0xD2511F53u}, second = c * u64{0xCD9E8D57u};
    a = (second >> 32) ^ b ^ key0;
    b = second & LOW;
    c = (first >> 32) ^ d ^ key1;
    d = first & LOW;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  for (int block = 0; block < BLOCKS; ++block) {
    out[4 * block] = static_cast<u32>(a[block]);
    out[4 * block + 1] = static_cast<u32>(b[block]);
    out[4 * block + 2] = static_cast<u32>(c[block]);
    out[4 * block + 3] = static_cast<u32>(d[block]);
  }
}

// The numbers of one node in one layer of one step, in order.
struct Draws {
  u32 key0, key1, node, step, layer;
  u32 drawn = 0, numbers[4 * BLOCKS] = {};

  u32 next() {
    constexpr u32 AT_ONCE = 4 * BLOCKS;
    if (drawn % AT_ONCE == 0) {
      const u32 counter[4] = {node, step, layer, drawn / 4};
      philox(key0, key1, counter, numbers);
    }
    return numbers[drawn++ % AT_ONCE];
  }

  // One of 0 to count - 1, all equally likely (Lemire 2019, algorithm 5).
  u32 below(u32 count) {
    u64 product = u64{next()} * count;
    if (static_cast<u32>(product) < count) {
      const u32 least = (0u - count) % count;
      while (static_cast<u32>(product) < least) product = u64{next()} * count;
    }
    return static_cast<u32>(product >> 32);
  }
};

// Up to this many are sorted by insertion.
constexpr u32 FEW = 16;

// k of the numbers 0 to n - 1, ascending, every set of k as likely as any (R. W. Floyd, in Bentley
// 1987); it takes k draws and k comparisons or so, however large n is.
void floyd(Draws& draws, u32 n, u32 k, u32* picked) {
  for (u32 count = 0; count < k; ++count) {
    const u32 last = n - k + count, drawn = draws.below(last + 1);
    bool taken = false;
    for (u32 place = 0; place < count; ++place) taken |= picked[place] == drawn;
    picked[count] = taken ? last : drawn;
  }
  if (k <= FEW) {
    for (u32 place = 1; place < k; ++place) {
      const u32 moved = picked[place];
      u32 to = place;
      for (; to > 0 && picked[to - 1] > moved; --to) picked[to] = picked[to - 1];
      picked[to] = moved;
    }
  } else {
    std::sort(picked, picked + k);
  }
}

// The same; where it is most of n, those are drawn that stay out.
void pick(Draws& draws, u32 n, u32 k, u32* picked, std::vector<u32>& others) {
  if (k <= n - k) return floyd(draws, n, k, picked);
  others.resize(n - k + 1);
  floyd(draws, n, n - k, others.data());
  others[n - k] = n;
  u32 out = 0;
  for (u32 number = 0; number < n; ++number) {
    if (number == others[out]) ++out;
    else *picked++ = number;
  }
}

// A set of nodes as bits, and how many come before each word.
struct Zone {
  std::vector<u64> bits;
  std::vector<i32> before;
  i64 first = 0, count = 0;

  void clear(i64 words) {
    bits.assign(words, 0);
    before.resize(words);
  }
  bool has(i64 node) const { return bits[node / 64] >> (node % 64) & 1; }
  // By any thread.
  void add(i64 node) {
    const u64 bit = u64{1} << (node % 64);
    u64* word = &bits[node / 64];
    if (!(__atomic_load_n(word, __ATOMIC_RELAXED) & bit))
      __atomic_fetch_or(word, bit, __ATOMIC_RELAXED);
  }
  i64 local(i64 node) const {
    const u64 below = (u64{1} << (node % 64)) - 1;
    return first + before[node / 64] + __builtin_popcountll(bits[node / 64] & below);
  }
  // After the last addition: its nodes, ascending, as numbers from `begin` on.
  void close(i64 begin, i64* nodes) {
    first = begin;
    count = 0;
    for (i64 word = 0; word < static_cast<i64>(bits.size()); ++word) {
      before[word] = static_cast<i32>(count);
      for (u64 left = bits[word]; left; left &= left - 1)
        nodes[begin + count++] = word * 64 + __builtin_ctzll(left);
    }
  }
};

// What is kept from layer to layer of one mini-batch, and used again for the next.
struct Sampler {
  i64 nodes;
  std::vector<Zone> zones;
  int used = 0;

  Zone& begin_zone() {
    if (used == static_cast<int>(zones.size())) zones.emplace_back();
    Zone& zone = zones[used++];
    zone.clear((nodes + 63) / 64);
    return zone;
  }
  // Of a node that is in one of them: the outer zones are the larger ones.
  i64 local(i64 node) const {
    for (int zone = used - 1; zone > 0; --zone)
      if (zones[zone].has(node)) return zones[zone].local(node);
    return zones[0].local(node);
  }
};

// A graph by target, and how neighbours of a row of it are drawn.
struct Drawing {
  const i64* indptr;
  const i32* columns;
  i64 edges, fanout;
  u64 seed;
  u32 step, layer;
  bool replace;

  i64 degree(i64 node) const { return indptr[node + 1] - indptr[node]; }
  // With the edge of a node to itself.
  i64 drawn(i64 node) const {
    const i64 all = degree(node);
    if (all == 0) return 1;
    return 1 + (replace ? fanout : std::min(all, fanout));
  }
  // edge: the numbers of the drawn ones in the graph, ascending unless drawn with replacement.
  void draw(i64 node, i64* edge, std::vector<u32>& picked, std::vector<u32>& others) const {
    const i64 first = indptr[node], all = degree(node);
    if (!replace && all <= fanout) {
      for (i64 k = 0; k < all; ++k) edge[k] = first + k;
      return;
    }
    if (all == 0) return;
    Draws draws{static_cast<u32>(seed), static_cast<u32>(seed >> 32), static_cast<u32>(node), step,
                layer};
    if (replace) {
      for (i64 k = 0; k < fanout; ++k) edge[k] = first + draws.below(static_cast<u32>(all));
      return;
    }
    pick(draws, static_cast<u32>(all), static_cast<u32>(fanout), picked.data(), others);
    for (i64 k = 0; k < fanout; ++k) edge[k] = first + picked[k];
  }
};

// Rows whose neighbours are asked for together: where they lie is anywhere.
constexpr i64 GROUP = 16;

}  // namespace

extern "C" {
void philox_block(u32 key0, u32 key1, const u32* counter, u32* out) {
  u32 numbers[4 * BLOCKS];
  philox(key0, key1, counter, numbers);
  std::copy(numbers, numbers + 4, out);
}

// k of n as node 0 draws them in step 0, layer 0 of `seed`.
void pick_positions(u64 seed, u32 n, u32 k, u32* picked) {
  Draws draws{static_cast<u32>(seed), static_cast<u32>(seed >> 32), 0, 0, 0};
  std::vector<u32> others;
  pick(draws, n, k, picked, others);
}

void* sampler_create(i64 nodes) { return new Sampler{nodes, {}, 0}; }

void sampler_destroy(void* sampler) { delete static_cast<Sampler*>(sampler); }

// A new mini-batch of `count` different seeds; nodes [count ...] become they, ascending.
void sampler_begin(void* sampler, const i64* seeds, i64 count, i64* nodes) {
  Sampler& s = *static_cast<Sampler*>(sampler);
  s.used = 0;
  Zone& zone = s.begin_zone();
  for (i64 k = 0; k < count; ++k) zone.add(seeds[k]);
  zone.close(0, nodes);
}

// indptr_out [rows + 1] of what `rows` nodes will draw, each with its edge to itself.
void sampler_count(const Drawing* drawing, const i64* nodes, i64 rows, i64* indptr_out, int parts) {
  const Drawing d = *drawing;
  in_parts(parts, [&](int part) {
    const i64 last = even_cut(rows, part + 1, parts);
    for (i64 row = even_cut(rows, part, parts); row < last; ++row) {
      if (row + GROUP < last) __builtin_prefetch(d.indptr + nodes[row + GROUP]);
      indptr_out[row + 1] = d.drawn(nodes[row]);
    }
  });
  indptr_out[0] = 0;
  for (i64 row = 0; row < rows; ++row) indptr_out[row + 1] += indptr_out[row];
}

// The edges of one layer into the first `rows` of `nodes`: local source and number in the graph
// (that of a node to itself is edges + node), row by row, the edge to itself last. Nodes that are
// reached for the first time follow in `nodes`; returns how many there are then.
i64 sampler_draw(void* sampler, const Drawing* drawing, i64* nodes, i64 rows, const i64* indptr_out,
                 i64* source, i64* edge, int parts) {
  Sampler& s = *static_cast<Sampler*>(sampler);
  const Drawing d = *drawing;
  Zone reached;
  reached.clear((s.nodes + 63) / 64);
  in_parts(parts, [&](int part) {
    std::vector<u32> picked(std::max<i64>(d.fanout, 1)), others;
    const i64 last = even_cut(rows, part + 1, parts);
    for (i64 first = even_cut(rows, part, parts); first < last; first += GROUP) {
      const i64 end = std::min(first + GROUP, last), ahead = std::min(end + GROUP, last);
      for (i64 row = end; row < ahead; ++row) __builtin_prefetch(d.indptr + nodes[row]);
      for (i64 row = first; row < end; ++row) {
        const i64 own = indptr_out[row + 1] - 1;
        source[own] = row;
        edge[own] = d.edges + nodes[row];
        d.draw(nodes[row], edge + indptr_out[row], picked, others);
        for (i64 e = indptr_out[row]; e < own; ++e) __builtin_prefetch(d.columns + edge[e]);
      }
      for (i64 row = first; row < end; ++row)
        for (i64 e = indptr_out[row]; e < indptr_out[row + 1] - 1; ++e) {
          source[e] = d.columns[edge[e]];
          reached.add(source[e]);
        }
    }
  });
  const i64 before = s.zones[s.used - 1].first + s.zones[s.used - 1].count;
  for (int zone = 0; zone < s.used; ++zone)
    for (std::size_t word = 0; word < reached.bits.size(); ++word)
      reached.bits[word] &= ~s.zones[zone].bits[word];
  Zone& zone = s.begin_zone();
  std::swap(zone.bits, reached.bits);
  zone.close(before, nodes);
  in_parts(parts, [&](int part) {
    const i64 last = even_cut(rows, part + 1, parts);
    for (i64 row = even_cut(rows, part, parts); row < last; ++row)
      for (i64 e = indptr_out[row]; e < indptr_out[row + 1] - 1; ++e) source[e] = s.local(source[e]);
  });
  return before + zone.count;
}

// The same edges by source, a counting sort: indptr_by [rows_in + 1], and by source the edges' places
// and targets, in the order in which they stand by target.
void by_source(const i64* indptr, const i64* source, i64 rows, i64 rows_in, i64* indptr_by,
               i64* order, i64* target) {
  std::fill(indptr_by, indptr_by + rows_in + 1, i64{0});
  const i64 edges = indptr[rows];
  for (i64 e = 0; e < edges; ++e) ++indptr_by[source[e] + 1];
  for (i64 row = 0; row < rows_in; ++row) indptr_by[row + 1] += indptr_by[row];
  std::vector<i64> next(indptr_by, indptr_by + rows_in);
  for (i64 row = 0; row < rows; ++row)
    for (i64 e = indptr[row]; e < indptr[row + 1]; ++e) {
      const i64 place = next[source[e]]++;
      order[place] = e;
      target[place] = row;
    }
}
}
