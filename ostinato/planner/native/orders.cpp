#include "orders.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace ost::plan {

namespace {

// Maxima over ranges in constant time, from those over all ranges of a power of two of values.
class RangeMaximum {
  public:
    explicit RangeMaximum(const std::vector<int64_t>& values) : levels_{values} {
        for (size_t width = 1; 2 * width <= values.size(); width *= 2) {
            const std::vector<int64_t>& below = levels_.back();
            std::vector<int64_t> level(below.size() - width);
            for (size_t i = 0; i < level.size(); ++i) level[i] = std::max(below[i], below[i + width]);
            levels_.push_back(std::move(level));
        }
    }

    int64_t over(size_t begin, size_t end) const {
        size_t level = 0;
        while (size_t{2} << level <= end - begin) ++level;
        return std::max(levels_[level][begin], levels_[level][end - (size_t{1} << level)]);
    }

  private:
    std::vector<std::vector<int64_t>> levels_;
};

}  // namespace

Orders::Orders(const Normal& problem) {
    const RangeMaximum load(problem.load);
    const auto peak = static_cast<int32_t>(std::max_element(problem.load.begin(), problem.load.end()) - problem.load.begin());
    for (const Item& item : problem.items) {
        peak_.push_back(load.over(item.first, item.last));
        sections_.push_back(item.last - item.first);
        life_.push_back(item.life);
        block_.push_back(static_cast<double>(item.size) * item.life);
        area_.push_back(static_cast<double>(item.size) * static_cast<double>(item.last - item.first));
        long_block_.push_back(static_cast<double>(item.size) * item.life * item.life);
        size_.push_back(item.size);
        nearness_.push_back(-std::max({item.first - peak, peak - item.last + 1, 0}));
        earliness_.push_back(-item.first);
        end_.push_back(item.last);
    }
}

std::vector<int32_t> Orders::ranks(const std::string& keys) const {
    std::vector<int32_t> order(size_.size());
    std::iota(order.begin(), order.end(), 0);
    for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
        const auto by = [&](const auto& value) {
            std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return value[a] > value[b]; });
        };
        if (*key == 'T') by(peak_);
        if (*key == 'W') by(sections_);
        if (*key == 'A') by(area_);
        if (*key == 'Z') by(size_);
        if (*key == 'L') by(life_);
        if (*key == 'B') by(block_);
        if (*key == 'Q') by(long_block_);
        if (*key == 'P') by(nearness_);
        if (*key == 'S') by(earliness_);
        if (*key == 'E') by(end_);
    }
    std::vector<int32_t> rank(order.size());
    for (size_t place = 0; place < order.size(); ++place) rank[order[place]] = static_cast<int32_t>(place);
    return rank;
}

std::vector<int32_t> Orders::ranks(const std::string& keys, double noise, uint64_t seed) const {
    std::vector<int32_t> rank = ranks(keys);
    if (noise <= 0) return rank;
    std::mt19937_64 random(seed);
    std::vector<double> moved(rank.size());
    const double reach = noise * static_cast<double>(rank.size());
    for (size_t i = 0; i < rank.size(); ++i) {
        moved[i] = rank[i] + reach * (static_cast<double>(random() >> 11) / 9007199254740992.0);  // 53 bits: [0, 1)
    }
    std::vector<int32_t> order(rank.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return moved[a] < moved[b]; });
    for (size_t place = 0; place < order.size(); ++place) rank[order[place]] = static_cast<int32_t>(place);
    return rank;
}

}  // namespace ost::plan
