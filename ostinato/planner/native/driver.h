// The course of a solve: bounds, greedy portfolio, rising dives, the exact ladder of targets; local search where a problem is too large for these.
//
// A round is a list of jobs that threads share; results are merged in the order of the list and jobs behind one that decides the round do not count. So with
// a limit on nodes alone the outcome depends on the problem, the limit and the seed, and not on threads or time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "problem.h"
#include "stop.h"

namespace ost::plan {

struct Limits {
    int64_t nodes;  // search nodes and items placed by local search; negative: no limit
    int32_t threads;
    uint64_t seed;
};

struct Result {
    std::vector<int64_t> offsets;  // bytes, one a buffer of the problem
    int64_t height = 0;            // bytes
    int64_t bound = 0;             // bytes: no placement is lower, by the load or by a search that proved it
    int64_t bound_time = 0;        // a moment at which the load is highest
    int64_t nodes = 0;
    bool stopped = false;          // by `Stop` before it was done
    std::string finder;
};

// Places `buffers` as low as the limits allow. `capacity` (bytes; negative: none) is one more target of the search: a bound above it proves that nothing fits.
// Throws std::overflow_error if a placement could pass 2^63 - 1 bytes.
Result solve(const std::vector<Buffer>& buffers, int64_t capacity, const Limits& limits, const Stop& stop);

}  // namespace ost::plan
