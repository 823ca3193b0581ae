#include "space.h"

#include <algorithm>
#include <utility>

namespace ost::plan {

namespace {

constexpr size_t kFewSteps = 64;  // below it std::sort is as fast

int width(uint64_t value) {
    int bits = 0;
    for (; value != 0; value >>= 1) ++bits;
    return bits;
}

bool before(const Step& a, const Step& b) { return a.at < b.at; }

}  // namespace

// Two passes over the leading bits of `at`, about as many as tell that many steps apart, and an insertion sort for the rest.
void StepSorter::sort(std::vector<Step>& steps, size_t count) {
    const auto end = steps.begin() + static_cast<std::ptrdiff_t>(count);
    if (count < kFewSteps) {
        std::stable_sort(steps.begin(), end, before);
        return;
    }
    int64_t largest = 0;
    for (size_t i = 0; i < count; ++i) largest = std::max(largest, steps[i].at);
    const int digit = std::min(11, width(count));
    const int shift = std::max(0, width(static_cast<uint64_t>(largest)) - 2 * digit);
    const size_t digits = size_t{1} << digit;
    const uint64_t mask = digits - 1;
    low_.assign(digits, 0);
    high_.assign(digits, 0);
    if (other_.size() < count) other_.resize(2 * count);
    for (size_t i = 0; i < count; ++i) {
        const uint64_t key = static_cast<uint64_t>(steps[i].at) >> shift;
        ++low_[key & mask];
        ++high_[key >> digit];
    }
    uint32_t low = 0;
    uint32_t high = 0;
    for (size_t d = 0; d < digits; ++d) {
        low += std::exchange(low_[d], low);
        high += std::exchange(high_[d], high);
    }
    for (size_t i = 0; i < count; ++i) other_[low_[(static_cast<uint64_t>(steps[i].at) >> shift) & mask]++] = steps[i];
    for (size_t i = 0; i < count; ++i) steps[high_[static_cast<uint64_t>(other_[i].at) >> shift >> digit]++] = other_[i];
    if (shift == 0) return;
    size_t moves = 16 * count;
    for (size_t i = 1; i < count; ++i) {
        const Step step = steps[i];
        size_t place = i;
        for (; place > 0 && step.at < steps[place - 1].at; --place) steps[place] = steps[place - 1];
        steps[place] = step;
        if (moves < i - place) {
            std::stable_sort(steps.begin(), end, before);  // most lie in one place, seen from afar
            return;
        }
        moves -= i - place;
    }
}

Space::Space(const Normal& problem)
    : problem_(problem), items_(problem.items, problem.sections), obstacles_(problem.obstacles, problem.sections), slots_(problem.items.size()),
      steps_(2 * (problem.items.size() + problem.obstacles.size())),
      down_(problem.items.size() + problem.obstacles.size()) {}

void Space::clear() { std::fill(slots_.begin(), slots_.end(), Slot()); }

Space::View Space::look(int32_t index, int64_t limit) {
    const Item& item = problem_.items[index];
    gather(item, limit);
    sorter_.sort(steps_, step_count_);
    int64_t weight = ground_;
    int64_t least = ground_;
    for (size_t i = 0; i < step_count_; ++i) {
        weight += steps_[i].change;
        least = std::min(least, weight);  // on the way down to the sum at one place all sums are larger
    }
    spots_.clear();
    const auto add_spot = [&](int64_t low, int64_t high) {
        low *= item.alignment;
        high *= item.alignment;
        if (!spots_.empty() && spots_.back().high + item.alignment == low) {
            spots_.back().high = high;
        } else {
            spots_.push_back({low, high});
        }
    };
    int64_t begin = 0;
    weight = ground_;
    for (size_t i = 0; i < step_count_; ++i) {
        if (weight == least && steps_[i].at > begin) add_spot(begin, steps_[i].at - 1);
        weight += steps_[i].change;
        begin = steps_[i].at;
    }
    if (weight == least) add_spot(begin, limit / item.alignment);
    return {least, spots_};
}

void Space::gather(const Item& item, int64_t limit) {
    const int64_t end = limit + item.size;
    near_.clear();
    step_count_ = down_count_ = 0;
    ground_ = 0;
    items_.each(item.first, item.last, [&](int32_t other) {
        const Slot& slot = slots_[other];
        if (slot.low >= end) return;
        near_.push_back(other);
        add(item, limit, slot);
    });
    looked_at_ += static_cast<int64_t>(near_.size());
    obstacles_.each(item.first, item.last, [&](int32_t other) {
        const Obstacle& obstacle = problem_.obstacles[other];
        if (obstacle.low < end) add(item, limit, {obstacle.low, obstacle.high, kWall});
        ++looked_at_;
    });
    std::copy_n(down_.begin(), down_count_, steps_.begin() + static_cast<std::ptrdiff_t>(step_count_));
    step_count_ += down_count_;
}

// What lies in [low, high) forbids the offsets from low - size, exclusive, to high, exclusive.
void Space::add(const Item& item, int64_t limit, const Slot& slot) {
    int64_t from = std::max<int64_t>(0, slot.low - item.size + 1);
    int64_t to = slot.high;
    if (item.alignment != 1) {
        from = from / item.alignment + (from % item.alignment != 0 ? 1 : 0);
        to = to / item.alignment + (to % item.alignment != 0 ? 1 : 0);
        limit /= item.alignment;
        if (from >= to) return;  // between two multiples
    }
    if (from > limit) return;
    if (from == 0) {
        ground_ += slot.weight;
    } else {
        steps_[step_count_++] = {from, slot.weight};
    }
    if (to <= limit) down_[down_count_++] = {to, -slot.weight};
}

}  // namespace ost::plan
