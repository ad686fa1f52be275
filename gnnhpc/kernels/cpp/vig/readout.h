// ViG's readout, float32: logits = GELU(p A + a) B + b with p the sum over an image's nodes.
//
// Hidden units lie side by side in lanes; values of a group of them for some images are in the
// nearest cache while all classes pass, and are recomputed in backward. As in nodes.h
// results do not depend on the number of threads.

#pragma once

#include <cstring>

#include "nodes.h"

namespace {

// Numbers of a group of hidden units, zero past `count`.
INLINE Nodes of_units(const float* from, i64 count) {
    Nodes out;
    if (count >= kGroup) {
        std::memcpy(out.lanes(), from, sizeof out);
    } else {
        out = Nodes(0.0f);
        std::copy(from, from + count, out.lanes());
    }
    return out;
}

// A sum that is still to be made of the lanes.
struct Lanes {
    Vec at;
};

INLINE Vec dot(const Nodes& a, const Nodes& b) {
    Vec total = a.at[0] * b.at[0];
    for (int w = 1; w < kWide; ++w) total += a.at[w] * b.at[w];
    return total;
}

// The first layer's weights of a group of hidden units.
struct UnitGroup {
    Nodes in[kChannels], constant;

    INLINE FarGelu of(const float* pooled) const {
        Nodes u = in[0] * pooled[0] + constant;
        for (int k = 1; k < kChannels; ++k) u = in[k] * pooled[k] + u;
        return FarGelu(u * kScale);
    }
};

// Gradients of all weights of a group.
struct GroupGradients {
    Nodes in[kChannels], constant;
    std::vector<Nodes> out;  // [classes]

    void clear(i64 classes) {
        std::fill(in, in + kChannels, Nodes(0.0f));
        constant = Nodes(0.0f);
        out.assign(size(classes), Nodes(0.0f));
    }
};

constexpr i64 kTile = 16;

struct Readout {
    i64 images, nodes, hidden, classes, threads;
    const float *w1, *b1, *w2, *b2;

    Readout(const i64* sizes, const float* const* weights, i64 threads)
        : images(sizes[0]), nodes(sizes[1]), hidden(sizes[2]), classes(sizes[3]),
          threads(threads), w1(weights[0]), b1(weights[1]), w2(weights[2]), b2(weights[3]) {}

    i64 groups() const { return (hidden + kGroup - 1) / kGroup; }
    i64 parts() const { return parts_of(groups(), 32, 4); }

    // task(from, to) for parts of the images.
    template <class Task>
    void over_images(const Task& task) const {
        in_parts(parts_of(images, 16, 1), images, threads,
                 [&](i64, i64 from, i64 to) { task(from, to); });
    }

    UnitGroup first_layer(i64 group) const {
        const i64 first = group * kGroup, count = hidden - first;
        UnitGroup units;
        spread(w1 + first * kChannels, count, units.in);
        units.constant = of_units(b1 + first, count);
        return units;
    }

    // Of the second layer, a class's weights of a group.
    INLINE Nodes second_layer(i64 group, i64 c) const {
        const i64 first = group * kGroup;
        return of_units(w2 + c * hidden + first, hidden - first);
    }

    // task(start, filled) for images whose numbers stay in the nearest cache.
    template <class Task>
    void in_tiles(const Task& task) const {
        for (i64 start = 0; start < images; start += kTile)
            task(start, std::min(kTile, images - start));
    }

    // Sums over an image's nodes, in double.
    void pool(const float* x, float* pooled) const {
        constexpr i64 step = kChannels * LANES;
        const i64 length = nodes * kChannels, whole = length / step * step;
        over_images([&](i64 from, i64 to) {
            for (i64 image = from; image < to; ++image) {
                const float* row = x + image * length;
                double lanes[step] = {}, total[kChannels] = {};
                for (i64 i = 0; i < whole; i += step)
                    for (i64 l = 0; l < step; ++l) lanes[l] += static_cast<double>(row[i + l]);
                for (i64 l = 0; l < step; ++l) total[l % kChannels] += lanes[l];
                for (i64 i = whole; i < length; ++i)
                    total[i % kChannels] += static_cast<double>(row[i]);
                for (int k = 0; k < kChannels; ++k)
                    pooled[image * kChannels + k] = static_cast<float>(total[k]);
            }
        });
    }

    void forward(const float* pooled, float* logits) const {
        const i64 count = images * classes, number = parts();
        Doubles partial(size(number * count));
        in_parts(number, groups(), threads, [&](i64 part, i64 from, i64 to) {
            static thread_local std::vector<Lanes> lanes;  // [images][classes]
            lanes.assign(size(count), Lanes{});
            for (i64 group = from; group < to; ++group) {
                const UnitGroup units = first_layer(group);
                in_tiles([&](i64 start, i64 filled) {
                    Nodes values[kTile];
                    for (i64 i = 0; i < filled; ++i)
                        values[i] = units.of(pooled + (start + i) * kChannels).value();
                    for (i64 c = 0; c < classes; ++c) {
                        const Nodes out = second_layer(group, c);
                        for (i64 i = 0; i < filled; ++i)
                            lanes[size((start + i) * classes + c)].at += dot(values[i], out);
                    }
                });
            }
            std::transform(lanes.begin(), lanes.end(), partial.data() + part * count,
                           [](const Lanes& each) { return sum(each.at); });
        });
        for (i64 i = 0; i < count; ++i) {
            double total = 0.0;
            for (i64 part = 0; part < number; ++part) total += partial[size(part * count + i)];
            logits[i] = static_cast<float>(total / kScale + b2[i % classes]);
        }
    }

    // Gradients of the weights where they belong; returns that of the pooled images.
    Doubles backward(const float* pooled, const float* g, float* const* d_weights) const {
        const i64 count = images * kChannels, number = parts();
        Doubles partial(size(number * count)), d_pooled(size(count));
        in_parts(number, groups(), threads, [&](i64 part, i64 from, i64 to) {
            static thread_local GroupGradients gradients;
            static thread_local std::vector<Lanes> lanes;  // [images][3]
            lanes.assign(size(count), Lanes{});
            for (i64 group = from; group < to; ++group) {
                gradients.clear(classes);
                back_through(group, pooled, g, gradients, lanes.data());
                put(group, gradients, d_weights);
            }
            std::transform(lanes.begin(), lanes.end(), partial.data() + part * count,
                           [](const Lanes& each) { return sum(each.at); });
        });
        for (i64 part = 0; part < number; ++part)
            for (i64 i = 0; i < count; ++i) d_pooled[size(i)] += partial[size(part * count + i)];
        for (i64 c = 0; c < classes; ++c) {
            double total = 0.0;
            for (i64 image = 0; image < images; ++image)
                total += static_cast<double>(g[image * classes + c]);
            d_weights[3][c] = static_cast<float>(total);
        }
        return d_pooled;
    }

    // Gradients of a group's weights; that of the pooled images is added to `d_pooled`'s lanes.
    void back_through(i64 group, const float* pooled, const float* g, GroupGradients& gradients,
                      Lanes* d_pooled) const {
        const UnitGroup units = first_layer(group);
        in_tiles([&](i64 start, i64 filled) {
            Nodes values[kTile], slopes[kTile], d_values[kTile];
            for (i64 i = 0; i < filled; ++i) {
                const FarGelu gelu = units.of(pooled + (start + i) * kChannels);
                values[i] = gelu.value() * (1.0f / kScale);
                slopes[i] = gelu.slope();
                d_values[i] = Nodes(0.0f);
            }
            for (i64 c = 0; c < classes; ++c) {
                const Nodes out = second_layer(group, c);
                Nodes d_out = gradients.out[size(c)];
                for (i64 i = 0; i < filled; ++i) {
                    const float d_logit = g[(start + i) * classes + c];
                    d_values[i] = out * d_logit + d_values[i];
                    d_out = values[i] * d_logit + d_out;
                }
                gradients.out[size(c)] = d_out;
            }
            for (i64 i = 0; i < filled; ++i) {
                const i64 image = (start + i) * kChannels;
                const Nodes d_u = d_values[i] * slopes[i];
                gradients.constant = gradients.constant + d_u;
                for (int k = 0; k < kChannels; ++k) {
                    gradients.in[k] = d_u * pooled[image + k] + gradients.in[k];
                    d_pooled[image + k].at += dot(d_u, units.in[k]);
                }
            }
        });
    }

    void put(i64 group, const GroupGradients& gradients, float* const* d_weights) const {
        const i64 first = group * kGroup, count = std::min(kGroup, hidden - first);
        float *d_w1 = d_weights[0] + first * kChannels, *d_b1 = d_weights[1] + first;
        for (int k = 0; k < kChannels; ++k)
            for (i64 n = 0; n < count; ++n)
                d_w1[n * kChannels + k] = gradients.in[k].lanes()[n];
        for (i64 n = 0; n < count; ++n) d_b1[n] = gradients.constant.lanes()[n];
        for (i64 c = 0; c < classes; ++c) {
            float* d_w2 = d_weights[2] + c * hidden + first;
            const float* d_out = gradients.out[size(c)].lanes();
            for (i64 n = 0; n < count; ++n) d_w2[n] = d_out[n];
        }
    }

    // Every node of an image has the gradient of their sum.
    void spread_to_nodes(const Doubles& d_pooled, float* d_x) const {
        constexpr i64 step = kChannels * LANES;
        const i64 length = nodes * kChannels;
        over_images([&](i64 from, i64 to) {
            for (i64 image = from; image < to; ++image) {
                float some[step];
                for (i64 i = 0; i < step; ++i)
                    some[i] = static_cast<float>(d_pooled[size(image * kChannels + i % kChannels)]);
                float* row = d_x + image * length;
                for (i64 i = 0; i < length; i += step)
                    std::copy(some, some + std::min(step, length - i), row + i);
            }
        });
    }
};

}  // namespace
