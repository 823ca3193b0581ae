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
void StepSorter::sort(Step* steps, size_t count, int64_t largest) {
    if (count < kFewSteps) {
        std::sort(steps, steps + count, before);
        return;
    }
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
            std::sort(steps, steps + count, before);  // most lie in one place, seen from afar
            return;
        }
        moves -= i - place;
    }
}

Space::Space(const Normal& problem)
    : problem_(problem), items_(problem.items, problem.sections), obstacles_(problem.obstacles, problem.sections), slots_(problem.items.size()) {}

void Space::clear() { std::fill(slots_.begin(), slots_.end(), Slot()); }

void Space::gather(int32_t index, int64_t limit) {
    const Item& item = problem_.items[index];
    const int64_t end = limit + item.size;
    near_.clear();
    step_count_ = 0;
    last_step_ = 0;
    ground_ = 0;
    items_.each(item.first, item.last, [&](int32_t other) {
        const Slot& slot = slots_[other];
        if (slot.low >= end) return;
        near_.push_back(other);
        add(item, limit, slot);
    });
    obstacles_.each(item.first, item.last, [&](int32_t other) {
        const Obstacle& obstacle = problem_.obstacles[other];
        ++looked_at_;
        if (obstacle.low < end) add(item, limit, {obstacle.low, obstacle.high, kWall});
    });
    looked_at_ += static_cast<int64_t>(near_.size());
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
    if (steps_.size() < step_count_ + 2) steps_.resize(2 * steps_.size() + 64);
    if (from == 0) {
        ground_ += slot.weight;
    } else {
        steps_[step_count_++] = {from, slot.weight};
        last_step_ = std::max(last_step_, from);
    }
    if (to > limit) return;
    steps_[step_count_++] = {to, -slot.weight};
    last_step_ = std::max(last_step_, to);
}

}  // namespace ost::plan
