// Rounds of jobs: threads share a round, and what they find is merged in the order of its jobs.
//
// A job that what was merged before it makes pointless is skipped, or stopped and not counted, so the state after a round depends on its jobs alone and not
// on the number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "explorers.h"
#include "problem.h"
#include "stop.h"

namespace ost::plan {

// A piece of an explorer's work: for a placement of at most `bytes`, at most `nodes` nodes.
struct Job {
    Explorer* explorer;
    int64_t bytes;
    int64_t nodes;

    bool pointless(const Knowledge& known) const { return explorer->pointless(bytes, known); }
};

// Runs each job once on up to `threads` threads, the caller's among them; no explorer has two.
void run_round(const Normal& problem, const std::vector<Job>& jobs, int32_t threads, const Stop& stop, Knowledge& known);

}  // namespace ost::plan
