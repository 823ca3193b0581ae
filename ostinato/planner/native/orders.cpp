#include "orders.h"

#include <algorithm>
#include <numeric>

#include "range_maximum.h"

namespace ost::plan {

Orders::Orders(const Normal& problem) {
    const RangeMaximum<int64_t> load(problem.load);
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

}  // namespace ost::plan
