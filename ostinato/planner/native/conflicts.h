// Who meets whom: what a search over a problem looks up, made once and shared by its threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "problem.h"

namespace ost::plan {

// Lists of lists in one array.
template <typename T>
class Rows {
  public:
    struct Row {
        const T* from;
        const T* to;
        const T* begin() const { return from; }
        const T* end() const { return to; }
        size_t size() const { return to - from; }
    };

    // `fill` calls its argument with (row, entry) for every entry, in the same order each time it is called.
    template <typename Fill>
    Rows(size_t rows, Fill fill) : start_(rows + 1, 0) {
        fill([&](size_t row, const T&) { ++start_[row + 1]; });
        for (size_t row = 0; row < rows; ++row) start_[row + 1] += start_[row];
        entries_.resize(start_[rows]);
        std::vector<size_t> next(start_.begin(), start_.end());
        fill([&](size_t row, const T& entry) { entries_[next[row]++] = entry; });
    }

    Row operator[](size_t row) const { return {entries_.data() + start_[row], entries_.data() + start_[row + 1]}; }

  private:
    std::vector<size_t> start_;
    std::vector<T> entries_;
};

// Units [low, high) that obstacles hold in a section; `from_here` counts the units of this one and of those above it.
struct Blocked {
    int64_t low;
    int64_t high;
    int64_t from_here;
};

struct Conflicts {
    explicit Conflicts(const Normal& problem);

    const Normal& problem;
    Rows<int32_t> neighbours;   // item -> items that share a section with it, ascending
    Rows<int32_t> members;      // section -> its items, ascending
    Rows<Obstacle> obstacles;   // item -> obstacles that share a section with it, by `low`
    Rows<Blocked> blocked;      // section -> what is blocked, disjoint and ascending
};

}  // namespace ost::plan
