// Fast placements: what every solve starts with, and what goes on where the exact search cannot.
//
// Both are re-entrant (threads run `improve` with seeds of their own), and depend on nothing but their arguments while `stop` does not ask for an end.
#pragma once

#include <cstdint>

#include "problem.h"
#include "stop.h"

namespace ost::plan {

// Offers greedy placements to `best` until one reaches `problem.bound` or a budget of work is spent. The first placement is completed whatever `stop` says,
// so that there is one afterwards.
void portfolio(const Normal& problem, const Stop& stop, Incumbent& best);

// Betters `best` by local search until it reaches `problem.bound`, `stop` asks for an end or `nodes` items were placed. Returns the items placed.
int64_t improve(const Normal& problem, int64_t nodes, uint64_t seed, const Stop& stop, Incumbent& best);

}  // namespace ost::plan
