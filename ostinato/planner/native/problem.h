// The placement problem as the solver works on it, and the lowest placement known so far.
//
// Times are compressed to sections: the moments with a largest set of living buffers, in order. Two lives overlap in time exactly where they share a
// section. Sizes and offsets are multiples of one unit. No shapes, no names: items are numbers.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace ost::plan {

// A buffer as the caller gives it: `size` bytes during [lower, upper), at a multiple of `alignment`, exactly at `fixed` unless that is negative.
struct Buffer {
    int64_t lower;
    int64_t upper;
    int64_t size;
    int64_t alignment;
    int64_t fixed;
};

// A buffer that may be moved and is not empty: alive in the sections [first, last), `size` units at a multiple of `alignment` units.
struct Item {
    int32_t first;
    int32_t last;
    int64_t size;
    int64_t alignment;
    int64_t padding;  // bytes of its last unit that it does not use, less than a unit
    int32_t alike;    // items of equal sections, size, alignment and padding have the same number
    double life;      // upper - lower
};

// A buffer with a fixed offset, units [low, high): what the items must not touch.
struct Obstacle {
    int32_t first;
    int32_t last;
    int64_t low;
    int64_t high;
};

// A problem in units and sections. Items are in ascending order of `first`, then of their place in the problem.
//
// Sizes are padded to the unit, so the end of an item in bytes is (offset + size) * unit - padding. Every placement in which no item can move lower has
// its offsets at multiples of the unit, and ends at `worst` units or below, which are at most 2^63 - 1 bytes; other sums of an offset and a size may overflow.
struct Normal {
    int64_t unit = 1;  // bytes
    int32_t sections = 0;
    std::vector<Item> items;
    std::vector<int32_t> buffer_of;  // item -> place in the problem
    std::vector<Obstacle> obstacles;
    std::vector<int64_t> load;     // section -> units alive in it, obstacles included
    std::vector<int64_t> padding;  // the distinct paddings of items, ascending
    int64_t conflicts = 0;         // pairs of items that share a section, of an item and an obstacle, and sections of obstacles
    int64_t pinned = 0;            // bytes: the highest end of a fixed buffer
    int64_t bound = 0;             // bytes: no placement is lower
    int64_t bound_time = 0;        // a moment at which the load gives the bound
    int64_t worst = 0;             // units

    // Height of a placement in bytes, fixed buffers included.
    int64_t height(const std::vector<int64_t>& offsets) const;
    // The highest end in units that any item may have in a placement of at most `bytes`.
    int64_t highest_end(int64_t bytes) const;
    // The highest offset that the item may have in such a placement; negative: none.
    int64_t highest_offset(int32_t item, int64_t bytes) const;
    // The lowest height above `bytes` that the items of a placement can come to.
    int64_t height_above(int64_t bytes) const;
};

// The first multiple of `alignment` from `value` on, or the largest number where there is none.
inline int64_t align_up(int64_t value, int64_t alignment) {
    const int64_t above = value % alignment;
    if (above == 0) return value;
    constexpr int64_t largest = std::numeric_limits<int64_t>::max();
    return alignment - above > largest - value ? largest : value + (alignment - above);
}

// The lowest placement known.
struct Incumbent {
    std::vector<int64_t> offsets;  // units, one an item
    int64_t height = std::numeric_limits<int64_t>::max();  // bytes
    std::string finder;            // what found it, such as "best_fit/size/lowest"; empty: none is known yet

    bool known() const { return !finder.empty(); }

    // Takes the placement if it is lower than the one known.
    bool offer(const Normal& problem, const std::vector<int64_t>& placement, const std::string& name);
};

}  // namespace ost::plan
