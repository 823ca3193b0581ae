// Fast placements: what every solve starts with.
#pragma once

#include "problem.h"
#include "stop.h"

namespace ost::plan {

// Offers greedy placements to `best` until one reaches `problem.bound` or a budget of work is spent. The first placement is completed whatever `stop` says,
// so that there is one afterwards.
void portfolio(const Normal& problem, const Stop& stop, Incumbent& best);

}  // namespace ost::plan
