// What lies where, and where an item could lie: the offsets at which it would meet least.
//
// What an item meets at an offset changes only where something placed begins or ends, so a sorted list of these places tells all offsets from each other.
// The list is made anew for each look; nothing is kept sorted, and there are no lists of neighbours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "problem.h"
#include "timeline.h"

namespace ost::plan {

// A change of what an item meets, from the offset `at` on (in multiples of its alignment).
struct Step {
    int64_t at;
    int64_t change;
};

// Sorts steps by `at`, by radix where there are many.
class StepSorter {
  public:
    void sort(Step* steps, size_t count, int64_t largest);

  private:
    std::vector<Step> other_;
    std::vector<uint32_t> low_;
    std::vector<uint32_t> high_;
};

// Offsets [low, high] that are multiples of the item's alignment at both ends; at each such multiple the item would meet things of that weight.
struct Spot {
    int64_t low;
    int64_t high;
    int64_t weight;
};

class Space {
  public:
    // Weight of an obstacle; all items together must weigh less. With more obstacles than that the sum of weights could overflow.
    static constexpr int64_t kWall = int64_t{1} << 40;
    static constexpr size_t kMostObstacles = size_t{1} << 22;

    explicit Space(const Normal& problem);

    void clear();
    void put(int32_t item, int64_t offset, int64_t weight) { slots_[item] = {offset, offset + problem_.items[item].size, weight}; }
    void take(int32_t item) { slots_[item].low = kAbsent; }
    bool holds(int32_t item) const { return slots_[item].low != kAbsent; }
    int64_t offset(int32_t item) const { return slots_[item].low; }

    // Calls `visit` with every spot up to the offset `limit` where the item, which is not placed, would meet less than just below and just above it, in
    // ascending order, until `visit` returns false. There is at least one if `limit` is not negative. Spots that meet nothing come one by one.
    template <typename Visit>
    void spots(int32_t item, int64_t limit, Visit visit);

    // Calls `visit` with every placed item that the item of the last look at spots would meet at `offset`.
    template <typename Visit>
    void met(int32_t item, int64_t offset, Visit visit) const {
        const int64_t end = offset + problem_.items[item].size;
        for (const int32_t other : near_) {
            if (slots_[other].low < end && slots_[other].high > offset) visit(other);
        }
    }

    // Placed items and obstacles looked at so far: a measure of the work done.
    int64_t looked_at() const { return looked_at_; }

  private:
    static constexpr int64_t kAbsent = std::numeric_limits<int64_t>::max();

    struct Slot {
        int64_t low = kAbsent;
        int64_t high = 0;
        int64_t weight = 0;
    };

    void gather(int32_t item, int64_t limit);
    void add(const Item& item, int64_t limit, const Slot& slot);

    const Normal& problem_;
    Timeline items_;
    Timeline obstacles_;
    std::vector<Slot> slots_;
    std::vector<int32_t> near_;  // placed items alive with the item last looked at, at offsets that it could meet
    std::vector<Step> steps_;
    size_t step_count_ = 0;
    int64_t last_step_ = 0;
    int64_t ground_ = 0;  // what the item would meet at 0
    int64_t looked_at_ = 0;
    StepSorter sorter_;
};

template <typename Visit>
void Space::spots(int32_t item, int64_t limit, Visit visit) {
    if (limit < 0) return;
    const int64_t alignment = problem_.items[item].alignment;
    gather(item, limit);
    sorter_.sort(steps_.data(), step_count_, last_step_);
    int64_t weight = ground_;
    int64_t begin = 0;
    bool fell = true;  // the weight is less than just below
    for (size_t i = 0; i < step_count_;) {
        const int64_t at = steps_[i].at;
        int64_t change = 0;
        for (; i < step_count_ && steps_[i].at == at; ++i) change += steps_[i].change;
        if (change == 0) continue;
        if (change > 0 && fell && !visit(Spot{begin * alignment, (at - 1) * alignment, weight})) return;
        fell = change < 0;
        begin = at;
        weight += change;
    }
    if (fell) visit(Spot{begin * alignment, limit / alignment * alignment, weight});
}

}  // namespace ost::plan
