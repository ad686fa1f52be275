// Orders of a block's edges: of each the row that it leads to, all of them by source, and of these
// the ones that end in rows with a gradient.

#pragma once

#include "rows.h"

namespace {

// Nanoseconds of work that are worth waking threads for and waiting for them.
constexpr i64 WORTH = 200'000;

// body(part) by as many threads, or by this one if there are but `nanoseconds` of work altogether.
template <typename Body>
void in_parts_if_worth(i64 nanoseconds, i64 parts, Body body) {
  if (nanoseconds >= WORTH) return in_parts(parts, body);
  for (int part = 0; part < parts; ++part) body(part);
}

// Places that are written some edges later are requested early: sources lie anywhere.
constexpr i64 WRITTEN_AHEAD = 16;

// Of each edge of `rows`, the row that it leads to.
template <typename I>
void targets(const I* indptr, i64 rows, I* target, i64 parts) {
  in_parts_if_worth(indptr[rows], parts, [&](int part) {
    const i64 last = balanced_cut(indptr, rows, part + 1, parts);
    for (i64 row = balanced_cut(indptr, rows, part, parts); row < last; ++row)
      std::fill(target + indptr[row], target + indptr[row + 1], static_cast<I>(row));
  });
}

// The same edges by source, a counting sort: indptr_by [rows_in + 1], and by source the edges' places
// and targets, in the order in which they stand by target.
template <typename I>
void by_source(const I* indptr, const I* source, i64 rows, i64 rows_in, I* indptr_by, I* order,
               I* target, i64 parts) {
  // Of each thread and source, the thread's edges; then, where the next of them goes.
  std::vector<std::vector<I>> next(parts);
  std::vector<i64> first(parts + 1);
  const i64 edges = indptr[rows];
  in_parts_if_worth(edges * 2, parts, [&](int part) {
    next[part].assign(rows_in, 0);
    const i64 end = indptr[balanced_cut(indptr, rows, part + 1, parts)];
    for (i64 e = indptr[balanced_cut(indptr, rows, part, parts)]; e < end; ++e)
      ++next[part][source[e]];
  });
  in_parts_if_worth(rows_in * parts / 4, parts, [&](int part) {
    i64 sum = 0;
    for (const auto& each : next)
      for (i64 row = even_cut(rows_in, part, parts); row < even_cut(rows_in, part + 1, parts); ++row)
        sum += each[row];
    first[part + 1] = sum;
  });
  for (int part = 0; part < parts; ++part) first[part + 1] += first[part];
  in_parts_if_worth(rows_in * parts, parts, [&](int part) {
    i64 place = first[part];
    const i64 last = even_cut(rows_in, part + 1, parts);
    for (i64 row = even_cut(rows_in, part, parts); row < last; ++row) {
      indptr_by[row] = static_cast<I>(place);
      for (auto& each : next) {
        const I count = each[row];
        each[row] = static_cast<I>(place);
        place += count;
      }
    }
  });
  indptr_by[rows_in] = static_cast<I>(first[parts]);
  in_parts_if_worth(edges * 8, parts, [&](int part) {
    std::vector<I>& own = next[part];
    const i64 last = balanced_cut(indptr, rows, part + 1, parts), end = indptr[last];
    for (i64 row = balanced_cut(indptr, rows, part, parts); row < last; ++row)
      for (i64 e = indptr[row]; e < indptr[row + 1]; ++e) {
        const I later = own[source[std::min(e + WRITTEN_AHEAD, end - 1)]];
        __builtin_prefetch(order + later, 1);
        __builtin_prefetch(target + later, 1);
        const I place = own[source[e]]++;
        order[place] = static_cast<I>(e);
        target[place] = static_cast<I>(row);
      }
  });
}

// A part of the rows, and of their edges, by source, those that end in marked rows; `order`, the
// edges' numbers, may be null. Rows and edges are numbered in I.
template <typename I>
struct MarkedEdges {
  const i64 row, last;
  const I *starts, *targets, *numbers;
  MarkedEdges(const I* by_source, const I* order, const I* target, i64 rows, i64 part, i64 parts,
              const Marks& marks)
      : row(balanced_cut(by_source, rows, part, parts)),
        last(balanced_cut(by_source, rows, part + 1, parts)),
        starts(by_source), targets(target), numbers(order), all_(by_source[rows]) {
    if (std::find(marks.begin(), marks.end(), 0) == marks.end()) return;
    kept_starts_.resize(last + 1);
    for (i64 at = row; at < last; ++at) {
      kept_starts_[at] = static_cast<I>(kept_targets_.size());
      for (i64 place = by_source[at]; place < by_source[at + 1]; ++place) {
        if (!marks[target[place]]) continue;
        kept_targets_.push_back(target[place]);
        if (order) kept_numbers_.push_back(order[place]);
      }
    }
    all_ = kept_starts_[last] = static_cast<I>(kept_targets_.size());
    starts = kept_starts_.data(), targets = kept_targets_.data();
    if (order) numbers = kept_numbers_.data();
  }
  // Those of one row.
  template <typename Edges>
  Edges of(i64 at) const {
    return {targets, numbers, starts[at], starts[at + 1], all_};
  }

 private:
  i64 all_;
  std::vector<I> kept_starts_, kept_targets_, kept_numbers_;
};

}  // namespace
