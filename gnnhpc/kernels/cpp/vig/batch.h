// Passes over the rows of a batch of images: in parts, sums of all rows, sums over each node's
// neighbours. Rows of activations are [rows][3], row = (image * height + row) * width + column.
//
// Work is dealt in parts whose number depends on the rows alone, and sums of parts are added in
// order: results do not depend on the number of threads, nor on which thread did what.

#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace {

using i64 = std::int64_t;

constexpr int kChannels = 3;

// Images, their size, and the threads to use.
struct Batch {
    i64 images, height, width, threads;

    i64 lines() const { return images * height; }
    i64 rows() const { return images * height * width; }
};

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

// Work in parts: no fewer than `few` for threads to share if there is that much, else as many as
// leave each `least` units.
i64 parts_of(i64 units, i64 least, i64 few) {
    return std::max<i64>(1, std::min(units, std::max(few, std::min<i64>(units / least, 256))));
}

// task(part, first, last) for each part of 0..units.
template <class Task>
void in_parts(i64 parts, i64 units, i64 threads, const Task& task) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(static_cast<int>(threads)) \
    if (threads > 1 && parts > 1)
    for (i64 part = 0; part < parts; ++part)
        task(part, units * part / parts, units * (part + 1) / parts);
}

// add(part(first, last)) for each part of 0..units: parts at the same time, sums in their order.
template <class Part, class Add>
void add_parts(i64 parts, i64 units, i64 threads, const Part& part, const Add& add) {
#pragma omp parallel for ordered schedule(dynamic, 1) num_threads(static_cast<int>(threads)) \
    if (threads > 1 && parts > 1)
    for (i64 i = 0; i < parts; ++i) {
        const auto& found = part(units * i / parts, units * (i + 1) / parts);
#pragma omp ordered
        add(found);
    }
}

// task(first, last) for parts of 0..rows, of passes that do little a row.
template <class Task>
void over_rows(const Batch& batch, const Task& task) {
    in_parts(parts_of(batch.rows(), 1 << 14, 1), batch.rows(), batch.threads,
             [&](i64, i64 first, i64 last) { task(first, last); });
}

// Sums over rows of `count` numbers a row, in double.
template <int count, class Row>
void sum_rows(const Batch& batch, double* sums, const Row& row) {
    const i64 parts = parts_of(batch.rows(), 1 << 14, 1);
    Doubles partial(parts * count, 0.0);
    in_parts(parts, batch.rows(), batch.threads, [&](i64 part, i64 first, i64 last) {
        double local[count] = {};
        for (i64 n = first; n < last; ++n) row(n, local);
        std::copy(local, local + count, &partial[part * count]);
    });
    std::fill(sums, sums + count, 0.0);
    for (i64 part = 0; part < parts; ++part)
        for (int i = 0; i < count; ++i) sums[i] += partial[part * count + i];
}

// Number of neighbours of each node of an image, as float.
Floats degrees(const Batch& batch) {
    Floats degree;
    for (i64 row = 0; row < batch.height; ++row)
        for (i64 column = 0; column < batch.width; ++column) {
            const i64 down = 1 + (row > 0) + (row + 1 < batch.height);
            const i64 across = 1 + (column > 0) + (column + 1 < batch.width);
            degree.push_back(static_cast<float>(down * across - 1));
        }
    return degree;
}

// take(line, sums) for each line of each image, with the sum of x over each node's up to eight
// neighbours: three lines added, then three columns, less the centre.
template <class Take>
void neighbour_sums(const float* x, const Batch& batch, const Take& take) {
    const i64 length = batch.width * kChannels, parts = parts_of(batch.lines(), 512, 1);
    in_parts(parts, batch.lines(), batch.threads, [&](i64, i64 first, i64 last) {
        Floats tall_line(length), sums_line(length);
        float *tall = tall_line.data(), *sums = sums_line.data();
        for (i64 line = first; line < last; ++line) {
            const float* centre = x + line * length;
            std::copy(centre, centre + length, tall);
            if (line % batch.height > 0)
                for (i64 i = 0; i < length; ++i) tall[i] += centre[i - length];
            if ((line + 1) % batch.height > 0)
                for (i64 i = 0; i < length; ++i) tall[i] += centre[i + length];
            for (i64 i = 0; i < length; ++i) sums[i] = tall[i] - centre[i];
            for (i64 i = kChannels; i < length; ++i) sums[i] += tall[i - kChannels];
            for (i64 i = kChannels; i < length; ++i) sums[i - kChannels] += tall[i];
            take(line, sums);
        }
    });
}

// Memory for rows, not initialized.
using Rows = std::unique_ptr<float[]>;

Rows make_rows(const Batch& batch) { return Rows(new float[batch.rows() * kChannels]); }

// The sums over each node's neighbours.
Rows neighbour_sums(const float* x, const Batch& batch) {
    Rows all = make_rows(batch);
    const i64 length = batch.width * kChannels;
    neighbour_sums(x, batch, [&](i64 line, const float* sums) {
        std::copy_n(sums, length, all.get() + line * length);
    });
    return all;
}

}  // namespace
