// Orders that learn from failed searches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "orders.h"
#include "problem.h"

namespace ost::plan {

// What searches have taught: sections in which they failed often weigh more, the last ones most.
struct Lesson {
    std::vector<double> weight;  // of a section; empty before the first search
    int64_t searches = 0;

    void learn(const std::vector<int64_t>& failures);
};

// An order by keys that puts first what lives where searches failed: the wheel that squeaks (D. E. Joslin and D. P. Clements, "Squeaky Wheel Optimization",
// 1999). Every search gets ranks of its own, moved a little at random; before the first they are those by keys alone.
class LearningOrder {
  public:
    LearningOrder(const Normal& problem, const Orders& orders, const std::string& keys, uint64_t seed)
        : problem_(problem), ranks_(orders.ranks(keys)), seed_(seed) {}

    std::vector<int32_t> ranks(const Lesson& lesson) const;

  private:
    const Normal& problem_;
    const std::vector<int32_t> ranks_;
    const uint64_t seed_;
};

}  // namespace ost::plan
