#include "learning.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "range_maximum.h"

namespace ost::plan {

namespace {

constexpr double kMemory = 0.9;   // of a lesson, from one search to the next
constexpr double kChance = 0.02;  // of the number of items: what chance moves a rank by, at most
constexpr double kSqueak = 2.0;   // the same of the section that weighs most

}  // namespace

void Lesson::learn(const std::vector<int64_t>& failures) {
    weight.resize(failures.size());
    const double all = static_cast<double>(std::accumulate(failures.begin(), failures.end(), int64_t{0}));
    for (size_t s = 0; s < weight.size(); ++s) weight[s] = kMemory * weight[s] + (all > 0 ? static_cast<double>(failures[s]) / all : 0);
    ++searches;
}

std::vector<int32_t> LearningOrder::ranks(const Lesson& lesson) const {
    if (lesson.searches == 0) return ranks_;
    std::mt19937_64 random(seed_ + static_cast<uint64_t>(lesson.searches) * 0x9e3779b97f4a7c15);
    const RangeMaximum<double> weight(lesson.weight);
    const double heaviest = weight.over(0, lesson.weight.size());
    const double squeak = heaviest > 0 ? kSqueak / heaviest : 0;
    const double count = static_cast<double>(ranks_.size());
    std::vector<double> place(ranks_.size());
    for (size_t i = 0; i < ranks_.size(); ++i) {
        const double chance = static_cast<double>(random() >> 11) / 9007199254740992.0;  // 53 bits: [0, 1)
        place[i] = ranks_[i] + count * (kChance * chance - squeak * weight.over(problem_.items[i].first, problem_.items[i].last));
    }
    std::vector<int32_t> order(ranks_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return place[a] < place[b]; });
    std::vector<int32_t> rank(order.size());
    for (size_t i = 0; i < order.size(); ++i) rank[order[i]] = static_cast<int32_t>(i);
    return rank;
}

}  // namespace ost::plan
