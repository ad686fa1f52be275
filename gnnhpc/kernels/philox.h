// Numbers of a counter: Philox 4x32-10 (Salmon et al. 2011), in the lanes of vectors.

#pragma once

#include "csr_rows.h"

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

// What the numbers of one layer of one step are drawn by; the nodes differ.
struct Key {
  u64 seed;
  u32 step, layer;
  u32 low() const { return static_cast<u32>(seed); }
  u32 high() const { return static_cast<u32>(seed >> 32); }
};

// The numbers of one node, in order.
struct Draws {
  static constexpr int BLOCKS = 4;
  Key key;
  u32 node;
  u32 drawn = 0, numbers[4 * BLOCKS] = {};

  u32 next() {
    constexpr u32 AT_ONCE = 4 * BLOCKS;
    if (drawn % AT_ONCE == 0) {
      Words<BLOCKS> place = {};
      for (int block = 0; block < BLOCKS; ++block) place[block] = drawn / 4 + block;
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

}  // namespace
