// Maxima over ranges of values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace ost::plan {

// Maxima over ranges in constant time, from those over all ranges of a power of two of values.
template <typename T>
class RangeMaximum {
  public:
    explicit RangeMaximum(const std::vector<T>& values) : levels_{values} {
        for (size_t width = 1; 2 * width <= values.size(); width *= 2) {
            const std::vector<T>& below = levels_.back();
            std::vector<T> level(below.size() - width);
            for (size_t i = 0; i < level.size(); ++i) level[i] = std::max(below[i], below[i + width]);
            levels_.push_back(std::move(level));
        }
    }

    T over(size_t begin, size_t end) const {
        size_t level = 0;
        while (size_t{2} << level <= end - begin) ++level;
        return std::max(levels_[level][begin], levels_[level][end - (size_t{1} << level)]);
    }

  private:
    std::vector<std::vector<T>> levels_;
};

}  // namespace ost::plan
