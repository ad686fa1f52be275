// Random numbers of a counter, Philox 4x32-10 (Salmon et al. 2011), in the lanes of vectors; and k of n
// without replacement, for one row or for several at once: the same picks either way.

#pragma once

#include "rows.h"

namespace {

using u64 = std::uint64_t;

// A vector of 32-bit numbers, with room for products of two.
template <int N>
using Words = typename VectorOf<u64, N>::type;

// N counters, one a lane, become N blocks of four numbers.
template <int N>
struct Philox {
  Words<N> a, b, c, d;

  void mix(u32 key0, u32 key1) {
    constexpr u64 LOW = 0xFFFFFFFFu;
    for (int round = 0; round < 10; ++round) {
      const Words<N> first = a * u64{0xD2511F53u}, second = c * u64{0xCD9E8D57u};
      a = (second >> 32) ^ b ^ key0;
      b = second & LOW;
      c = (first >> 32) ^ d ^ key1;
      d = first & LOW;
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
  }
};

// What the numbers of one layer of one step depend on, beside the node.
struct Key {
  u64 seed;
  u32 step, layer;
  u32 low() const { return static_cast<u32>(seed); }
  u32 high() const { return static_cast<u32>(seed >> 32); }
};

// The numbers of one node, in order.
struct RandomNumbers {
  static constexpr int BLOCKS = 4;
  Key key;
  u32 node;
  u32 used = 0, numbers[4 * BLOCKS] = {};

  u32 next() {
    constexpr u32 AT_ONCE = 4 * BLOCKS;
    if (used % AT_ONCE == 0) {
      Words<BLOCKS> place = {};
      for (int block = 0; block < BLOCKS; ++block) place[block] = used / 4 + block;
      const Words<BLOCKS> zero = {};
      Philox<BLOCKS> blocks{zero + node, zero + key.step, zero + key.layer, place};
      blocks.mix(key.low(), key.high());
      for (int block = 0; block < BLOCKS; ++block) {
        u32* to = numbers + 4 * block;
        to[0] = static_cast<u32>(blocks.a[block]);
        to[1] = static_cast<u32>(blocks.b[block]);
        to[2] = static_cast<u32>(blocks.c[block]);
        to[3] = static_cast<u32>(blocks.d[block]);
      }
    }
    return numbers[used++ % AT_ONCE];
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

// k of the numbers 0 to n - 1, ascending, every set of k as likely as any (R. W. Floyd, in Bentley
// 1987); it takes k random numbers, however large n is.
void floyd(RandomNumbers& random, u32 n, u32 k, u32* picked) {
  for (u32 count = 0; count < k; ++count) {
    const u32 last = n - k + count, number = random.below(last + 1);
    bool taken = false;
    for (u32 place = 0; place < count; ++place) taken |= picked[place] == number;
    picked[count] = taken ? last : number;
  }
  std::sort(picked, picked + k);
}

// The same; where it is most of n, those are chosen that stay out.
void pick(RandomNumbers& random, u32 n, u32 k, u32* picked, std::vector<u32>& others) {
  if (k <= n - k) return floyd(random, n, k, picked);
  others.resize(n - k + 1);
  floyd(random, n, n - k, others.data());
  others[n - k] = n;
  u32 out = 0;
  for (u32 number = 0; number < n; ++number) {
    if (number == others[out]) ++out;
    else *picked++ = number;
  }
}

// Floyd's picks of several rows, one a lane.
struct Picks {
  static constexpr int ROWS = VECTOR_BYTES / sizeof(u32);
  static constexpr u32 MOST = 32;
  using Numbers = VectorOf<u32, ROWS>::type;

  u32 node[ROWS] = {}, n[ROWS];
  Numbers picked[MOST];
  // Whether a row's picks are not these: one of its numbers may have to be replaced by the next.
  Numbers doubtful;

  Picks() { std::fill(n, n + ROWS, 2 * MOST); }

  static bool fits(u32 n, u32 k) { return k <= MOST && 2 * k <= n; }

  // k of n[row] for each row; all must fit.
  void choose(const Key& key, u32 k) {
    Words<ROWS> nodes, bound;
    for (int row = 0; row < ROWS; ++row) nodes[row] = node[row], bound[row] = n[row] - k + 1;
    const Words<ROWS> zero = {};
    doubtful = Numbers{};
    for (u32 count = 0; count < k; count += 4) {
      Philox<ROWS> block{nodes, zero + key.step, zero + key.layer, zero + count / 4};
      block.mix(key.low(), key.high());
      const Words<ROWS> four[] = {block.a, block.b, block.c, block.d};
      for (u32 place = count; place < std::min(count + 4, k); ++place) {
        add(place, four[place - count] * bound, bound);
        bound += 1;
      }
    }
    sort(k);
  }

 private:
  void add(u32 count, const Words<ROWS>& product, const Words<ROWS>& bound) {
    const Numbers number = __builtin_convertvector(product >> 32, Numbers);
    const Numbers rest = __builtin_convertvector(product & 0xFFFFFFFFu, Numbers);
    const Numbers above = __builtin_convertvector(bound, Numbers);
    doubtful |= reinterpret_cast<Numbers>(rest < above);
    Numbers taken = {};
    for (u32 place = 0; place < count; ++place)
      taken |= reinterpret_cast<Numbers>(picked[place] == number);
    picked[count] = taken ? above - 1 : number;
  }

  void sort(u32 k) {
    for (u32 end = k; end > 1; --end)
      for (u32 place = 1; place < end; ++place) {
        const Numbers one = picked[place - 1], other = picked[place];
        picked[place - 1] = one < other ? one : other;
        picked[place] = one < other ? other : one;
      }
  }
};

}  // namespace
