// The orders in which items are looked at: the search tries items of lower rank first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "problem.h"

namespace ost::plan {

// What an order sorts by, one letter a key: T for the largest load that an item lives through, W for the sections of its life, A for its size times those,
// Z for its size, L for the length of its life, B for its size times that and Q for its size times the square of that; largest first. P for the sections
// between it and the peak of the load, and S for the section in which it begins; smallest first. E for the section in which it ends, latest first. Ties are
// in the order of items. "TWA" is T, then W, then A.
class Orders {
  public:
    explicit Orders(const Normal& problem);

    // Rank of each item, 0 first.
    std::vector<int32_t> ranks(const std::string& keys) const;

  private:
    std::vector<int64_t> peak_;
    std::vector<int32_t> sections_;
    std::vector<double> life_;
    std::vector<double> block_;
    std::vector<double> area_;
    std::vector<double> long_block_;
    std::vector<int64_t> size_;
    std::vector<int64_t> nearness_;
    std::vector<int64_t> earliness_;
    std::vector<int64_t> end_;
};

}  // namespace ost::plan
