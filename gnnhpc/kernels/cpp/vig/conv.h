// GraphConv's two square matrices, times the four columns of a folded Linear and back, float32.
//
// A Grapher needs this once a micro-batch, whatever its images: the matrices, which are all that
// is large, are read once, and their gradients read and written once.

#pragma once

#include "nodes.h"

namespace {

constexpr int kRows = 2;         // that backward takes at once
constexpr i64 kSingleRows = 64;  // whose sums are in single precision

// The four numbers of each of LANES hidden units side by side; zero past the last unit.
struct Columns {
    Vec at[4];
};

std::vector<Columns> columns_of(i64 hidden, const double* folded) {
    std::vector<Columns> columns((hidden + LANES - 1) / LANES, Columns{});
    for (i64 i = 0; i < hidden; ++i)
        for (int k = 0; k < 4; ++k)
            reinterpret_cast<float*>(&columns[i / LANES].at[k])[i % LANES] =
                static_cast<float>(folded[k * hidden + i]);
    return columns;
}

// task(block, first unit, units) for each LANES of the hidden units; all but the last are whole.
template <class Task>
INLINE void over_blocks(i64 hidden, const Task& task) {
    const i64 whole = hidden / LANES;
    for (i64 block = 0; block < whole; ++block) task(block, block * LANES, LANES);
    if (hidden % LANES) task(whole, whole * LANES, hidden % LANES);
}

// Sums over a row of the convolution, root's with the four columns and then around's.
void sum_row(i64 hidden, const float* root, const float* around,
             const std::vector<Columns>& columns, double* total) {
    Vec sums[8] = {};
    over_blocks(hidden, [&](std::size_t block, i64 first, i64 count) ALWAYS_INLINE {
        const Vec r = load(root + first, count, hidden), a = load(around + first, count, hidden);
        for (int k = 0; k < 4; ++k) sums[k] += r * columns[block].at[k];
        for (int k = 0; k < 4; ++k) sums[4 + k] += a * columns[block].at[k];
    });
    for (int k = 0; k < 8; ++k) total[k] = static_cast<double>(quick_sum(sums[k]));
}

// The same in double.
void sum_row(i64 hidden, const float* root, const float* around, const double* folded,
             double* total) {
    const double *f0 = folded, *f1 = f0 + hidden, *f2 = f1 + hidden, *f3 = f2 + hidden;
    double r0 = 0, r1 = 0, r2 = 0, r3 = 0, a0 = 0, a1 = 0, a2 = 0, a3 = 0;
#pragma omp simd reduction(+ : r0, r1, r2, r3, a0, a1, a2, a3)
    for (i64 i = 0; i < hidden; ++i) {
        const double r = root[i], a = around[i];
        r0 += r * f0[i], r1 += r * f1[i], r2 += r * f2[i], r3 += r * f3[i];
        a0 += a * f0[i], a1 += a * f1[i], a2 += a * f2[i], a3 += a * f3[i];
    }
    const double sums[8] = {r0, r1, r2, r3, a0, a1, a2, a3};
    std::copy(sums, sums + 8, total);
}

// What a row of the matrices is multiplied by in backward, of a row of `first`'s gradients.
struct RowGradients {
    float own[4], around[4];

    RowGradients(const double* row, const double* mean) {
        for (int k = 0; k < 3; ++k) {
            own[k] = static_cast<float>(row[k] - mean[k] * row[7]);
            around[k] = static_cast<float>(row[3 + k] - mean[k] * row[6]);
        }
        own[3] = static_cast<float>(row[7]);
        around[3] = static_cast<float>(row[6]);
    }
};

// The convolution's two matrices and their gradients, [hidden][hidden] each.
struct Matrices {
    const float *root, *around;
    float *d_root, *d_around;
    i64 hidden;
};

// Of `rows` rows from row `j` on. A cache line of the matrices is met once.
template <int rows>
void unfold_few(const Matrices& of, i64 j, const RowGradients* row,
                const std::vector<Columns>& columns, std::vector<Columns>& d_columns) {
    const i64 hidden = of.hidden, start = j * hidden, ahead = rows * hidden;
    const float *root = of.root + start, *around = of.around + start;
    float *d_root = of.d_root + start, *d_around = of.d_around + start;
    over_blocks(hidden, [=, &columns, &d_columns](std::size_t block, i64 first, i64 count)
                            ALWAYS_INLINE {
        Vec f[4], sums[4] = {};
        for (int k = 0; k < 4; ++k) f[k] = columns[block].at[k];
        for (int n = 0; n < rows; ++n) {
            const i64 at = n * hidden + first;
            const Vec r = load(root + at, count, ahead), a = load(around + at, count, ahead);
            Vec own = f[0] * row[n].own[0], neighbours = f[0] * row[n].around[0];
            for (int k = 1; k < 4; ++k) {
                own += f[k] * row[n].own[k];
                neighbours += f[k] * row[n].around[k];
            }
            for (int k = 0; k < 4; ++k) sums[k] += r * row[n].own[k];
            for (int k = 0; k < 4; ++k) sums[k] += a * row[n].around[k];
            store(load(d_root + at, count, ahead) + own, d_root + at, count);
            store(load(d_around + at, count, ahead) + neighbours, d_around + at, count);
        }
        for (int k = 0; k < 4; ++k) d_columns[block].at[k] += sums[k];
    });
}

// Moves what the columns hold to `folded`, where sums are in double.
void move_columns(i64 hidden, std::vector<Columns>& columns, double* folded) {
    over_blocks(hidden, [&](std::size_t block, i64 first, i64 count) ALWAYS_INLINE {
        for (int k = 0; k < 4; ++k) {
            const float* from = reinterpret_cast<const float*>(&columns[block].at[k]);
            double* to = folded + k * hidden + first;
            for (i64 i = 0; i < count; ++i) to[i] += static_cast<double>(from[i]);
        }
        columns[block] = Columns{};
    });
}

// Gradients of the matrices are added to, and those of the four columns to `d_folded`, [4][hidden].
void unfold_rows(const Matrices& of, const std::vector<RowGradients>& rows,
                 const std::vector<Columns>& columns, double* d_folded) {
    std::vector<Columns> d_columns(columns.size(), Columns{});
    for (i64 j = 0; j < of.hidden;) {
        const i64 end = std::min(of.hidden, j + kSingleRows);
        for (; j + kRows <= end; j += kRows)
            unfold_few<kRows>(of, j, &rows[j], columns, d_columns);
        for (; j < end; ++j) unfold_few<1>(of, j, &rows[j], columns, d_columns);
        move_columns(of.hidden, d_columns, d_folded);
    }
}

}  // namespace
