// k of n without replacement, for one row or for sixteen at once: the same picks either way.

#pragma once

#include "philox.h"

namespace {

// k of the numbers 0 to n - 1, ascending, every set of k as likely as any (R. W. Floyd, in Bentley
// 1987); it takes k draws, however large n is.
void floyd(Draws& draws, u32 n, u32 k, u32* picked) {
  for (u32 count = 0; count < k; ++count) {
    const u32 last = n - k + count, drawn = draws.below(last + 1);
    bool taken = false;
    for (u32 place = 0; place < count; ++place) taken |= picked[place] == drawn;
    picked[count] = taken ? last : drawn;
  }
  std::sort(picked, picked + k);
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

// Floyd's picks of several rows, one a lane.
struct Picks {
  static constexpr int ROWS = 16;
  static constexpr u32 MOST = 32;
  using Numbers = VectorOf<u32, ROWS>::type;

  u32 node[ROWS] = {}, n[ROWS];
  Numbers picked[MOST];
  // Whether a row's picks are not these: one of its numbers may have to be drawn again.
  Numbers doubtful;

  Picks() { std::fill(n, n + ROWS, 2 * MOST); }

  static bool fits(u32 n, u32 k) { return k <= MOST && 2 * k <= n; }

  // k of n[row] for each row; all must fit.
  void draw(const Key& key, u32 k) {
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
    const Numbers drawn = __builtin_convertvector(product >> 32, Numbers);
    const Numbers rest = __builtin_convertvector(product & 0xFFFFFFFFu, Numbers);
    const Numbers above = __builtin_convertvector(bound, Numbers);
    doubtful |= reinterpret_cast<Numbers>(rest < above);
    Numbers taken = {};
    for (u32 place = 0; place < count; ++place)
      taken |= reinterpret_cast<Numbers>(picked[place] == drawn);
    picked[count] = taken ? above - 1 : drawn;
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
