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

// Sorts steps by `at`, by radix where there are many; those of equal `at` keep their order.
class StepSorter {
  public:
    void sort(std::vector<Step>& steps, size_t count);

  private:
    std::vector<Step> other_;
    std::vector<uint32_t> low_;
    std::vector<uint32_t> high_;
};

// The multiples of an item's alignment from one offset to another one, both included.
struct Spot {
    int64_t low;
    int64_t high;
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

    // Where the item, which is not placed, would meet things of the least total weight at an offset up to `limit`, which is not negative: `spots`, ascending.
    struct View {
        int64_t weight;
        const std::vector<Spot>& spots;
    };
    View look(int32_t item, int64_t limit);

    // Calls `visit` with every placed item that the item last looked at would meet at `offset`.
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

    void gather(const Item& item, int64_t limit);
    void add(const Item& item, int64_t limit, const Slot& slot);

    const Normal& problem_;
    Timeline items_;
    Timeline obstacles_;
    std::vector<Slot> slots_;
    std::vector<int32_t> near_;  // placed items alive with the item last looked at, at offsets that it could meet
    std::vector<Step> steps_;    // first those up, then those down; after sorting those of equal `at` keep that order
    std::vector<Step> down_;
    size_t step_count_ = 0;
    size_t down_count_ = 0;
    int64_t ground_ = 0;  // what the item would meet at 0
    int64_t looked_at_ = 0;
    StepSorter sorter_;
    std::vector<Spot> spots_;
};

}  // namespace ost::plan
