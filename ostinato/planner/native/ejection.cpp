#include "ejection.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace ost::plan {

namespace {

constexpr double kShare = 0.1;           // of the gap that a target takes away at first; halved each time that one is given up
constexpr double kSmallestShare = 0.005;
constexpr int64_t kPatience = 20;        // items placed for each item of the problem before a target is given up
constexpr int64_t kSettle = 2;           // items placed for each item of the problem before all settle
constexpr int64_t kTotalWeight = int64_t{1} << 28;
constexpr int64_t kMostForced = 1 << 10;  // all items together weigh less than a wall
constexpr int64_t kStopEvery = 16;        // items placed between two looks at the clock

// What a section counts, of one whose load is `share` of the highest: the places where little is free decide.
double heat(double share) {
    const double fourth = share * share * share * share;
    return fourth * fourth;
}

}  // namespace

Ejection::Ejection(const Normal& problem, uint64_t seed)
    : problem_(problem), space_(problem), state_(seed * 0x9E3779B97F4A7C15u ^ 0x632BE59BD9B4E019u), forced_(problem.items.size(), 1), share_(kShare) {
    if (state_ == 0) state_ = 1;
    weigh();
}

// The power 3/4 of the bytes times sections: large and long items are harder to place, but not as many times as they could be cut into small ones. Square
// roots are rounded the same way everywhere.
void Ejection::weigh() {
    const int64_t peak = *std::max_element(problem_.load.begin(), problem_.load.end());
    std::vector<double> heat_before(problem_.sections + 1, 0);
    for (int32_t s = 0; s < problem_.sections; ++s) {
        heat_before[s + 1] = heat_before[s] + heat(static_cast<double>(problem_.load[s]) / static_cast<double>(peak));
    }
    std::vector<double> hardness;
    double total = 0;
    for (const Item& item : problem_.items) {
        const double root = std::sqrt(static_cast<double>(item.size) * (heat_before[item.last] - heat_before[item.first]));
        hardness.push_back(root * std::sqrt(root));
        total += hardness.back();
    }
    for (const double value : hardness) weight_.push_back(1 + static_cast<int64_t>(value / total * static_cast<double>(kTotalWeight)));
}

int64_t Ejection::run(Incumbent& best, int64_t nodes, const Stop& stop) {
    if (problem_.obstacles.size() > Space::kMostObstacles) return 0;
    const auto items = static_cast<int64_t>(problem_.items.size());
    const int64_t before = nodes_;
    const auto left = [&] { return nodes - (nodes_ - before); };
    while (best.height > problem_.bound && left() > 0) {
        if (nodes_ % kStopEvery == 0 && stop.now()) break;
        if (best.height != height_) begin(best);
        if (out_.empty()) {
            std::vector<int64_t> offsets(problem_.items.size());
            for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = space_.offset(static_cast<int32_t>(i));
            best.offer(problem_, offsets, "ejection");
        } else if (nodes_ >= next_settle_ && items <= left()) {
            settle(random(2) == 1, stop);
            next_settle_ = nodes_ + kSettle * items;
        } else {
            const int32_t item = out_.top().item;
            out_.pop();
            if (put_in(item) && (out_.empty() || nodes_ < patience_ends_)) continue;
            share_ = std::max(share_ / 2, kSmallestShare);
            height_ = -1;
        }
    }
    return nodes_ - before;
}

// Sets the next target and takes out the items that end above it.
void Ejection::begin(const Incumbent& best) {
    const auto items = static_cast<int64_t>(problem_.items.size());
    const auto step = static_cast<int64_t>(static_cast<double>(best.height - problem_.bound) * share_);
    height_ = best.height;
    target_ = best.height - std::max<int64_t>(1, step);
    patience_ends_ = nodes_ + kPatience * items;
    next_settle_ = nodes_ + kSettle * items;
    out_ = {};
    for (size_t i = 0; i < problem_.items.size(); ++i) {
        const auto item = static_cast<int32_t>(i);
        if (best.offsets[i] <= problem_.highest_offset(item, target_)) {
            put(item, best.offsets[i]);
        } else {
            space_.take(item);
            out_.push({weight_[i], item});
        }
    }
}

// False: obstacles leave no place for the item.
bool Ejection::put_in(int32_t item) {
    ++nodes_;
    const Space::View view = space_.look(item, problem_.highest_offset(item, target_));
    if (view.weight >= Space::kWall) return false;
    const Spot& spot = view.spots[random(view.spots.size())];
    const int64_t offset = random(2) == 0 ? spot.low : spot.high;
    if (view.weight > 0) {
        forced_[item] = std::min(forced_[item] + 1, kMostForced);
        space_.met(item, offset, [&](int32_t other) {
            space_.take(other);
            out_.push({weight_[other], other});
        });
    }
    put(item, offset);
    return true;
}

// Downwards each item, the lowest first, goes to the lowest place that is free; upwards, the highest first, to the upper end of the gap that it is in.
void Ejection::settle(bool upwards, const Stop& stop) {
    std::vector<std::pair<int64_t, int32_t>> order;
    for (size_t i = 0; i < problem_.items.size(); ++i) {
        const auto item = static_cast<int32_t>(i);
        if (!space_.holds(item)) continue;
        const int64_t offset = space_.offset(item);
        order.push_back({upwards ? -(offset + problem_.items[i].size) : offset, item});
    }
    std::sort(order.begin(), order.end());
    for (const auto& [key, item] : order) {
        if (++nodes_ % kStopEvery == 0 && stop.now()) return;
        const int64_t from = space_.offset(item);
        int64_t to = from;
        space_.take(item);
        for (const Spot& spot : space_.look(item, upwards ? problem_.highest_offset(item, target_) : from).spots) {
            if (upwards && spot.high < from) continue;
            to = upwards ? spot.high : spot.low;
            break;
        }
        put(item, to);
    }
}

// xorshift (G. Marsaglia, "Xorshift RNGs", 2003).
uint64_t Ejection::random(uint64_t below) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return (state_ >> 32) * below >> 32;
}

}  // namespace ost::plan
