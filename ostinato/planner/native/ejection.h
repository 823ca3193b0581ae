// Local search by ejection: keep to a target below the best height, and put in what does not fit where it drives out least.
//
// All items whose end is above the target are taken out. Those that are out are put in again one by one, the hardest to place first, each at the offset where
// it meets items of the least total weight, which are taken out instead. An item weighs more the harder it is to place: the more bytes it takes for the
// longer where the load is high, and the more often it was put in by force, so that items that fight for the same place move on to others. Once nothing is
// out, the placement is the best and the next target lies a share of the gap to the bound lower. Now and then all items settle, downwards or upwards, which
// gathers the free bytes. A target that is not met in time is given up for one that is closer to the best.
//
// The search is local in time, so that it works on 100,000 items as on 100, and on the stretches where the load is highest without being told. It depends on
// the seed and on counts alone. It proves nothing. Ejecting by weights that grow with failures is known from vehicle routing (Y. Nagata, O. Braysy, "A
// powerful route minimization heuristic", 2009).
#pragma once

#include <cstdint>
#include <queue>
#include <vector>

#include "problem.h"
#include "space.h"
#include "stop.h"

namespace ost::plan {

class Ejection {
  public:
    // The problem has an item at least.
    Ejection(const Normal& problem, uint64_t seed);

    // Betters `best`, a placement already, until it reaches the bound, `nodes` items were placed or `stop` asks for an end. Returns the items placed. The next
    // call goes on where this one ended, unless it is given a lower placement to begin with.
    int64_t run(Incumbent& best, int64_t nodes, const Stop& stop);

  private:
    struct Out {
        int64_t weight;
        int32_t item;
        bool operator<(const Out& other) const { return weight != other.weight ? weight < other.weight : item < other.item; }
    };

    void weigh();
    void begin(const Incumbent& best);
    bool put_in(int32_t item);
    void settle(bool upwards, const Stop& stop);
    void put(int32_t item, int64_t offset) { space_.put(item, offset, weight_[item] * forced_[item]); }
    uint64_t random(uint64_t below);

    const Normal& problem_;
    Space space_;
    uint64_t state_;                // of the random numbers
    std::vector<int64_t> weight_;   // how hard an item is to place
    std::vector<int64_t> forced_;   // how often it was put in by force, and 1
    std::priority_queue<Out> out_;  // items that are not placed
    double share_;                  // of the gap that the next target takes away
    int64_t height_ = -1;           // of the placement that the search began with; -1: it has to begin anew
    int64_t target_ = 0;            // bytes
    int64_t nodes_ = 0;
    int64_t patience_ends_ = 0;     // at that many nodes
    int64_t next_settle_ = 0;
};

}  // namespace ost::plan
