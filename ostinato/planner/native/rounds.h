// Rounds of jobs: threads share a round, and what they find is merged in the order of its jobs.
//
// A job that what was merged before it makes pointless is skipped, or stopped and not counted, so the state after a round depends on its jobs alone and not
// on the number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "conflicts.h"
#include "exact.h"
#include "orders.h"
#include "problem.h"
#include "stop.h"

namespace ost::plan {

// What is known of a problem in the course of a solve.
struct Knowledge {
    Incumbent best;
    int64_t bound;      // bytes: no placement is lower
    int64_t nodes = 0;  // spent

    bool solved() const { return best.height <= bound; }
};

struct Job {
    enum Kind { kSearch, kDive, kImprove };
    Kind kind;
    int64_t bytes;  // the height to keep to; a dive begins with it
    int64_t nodes;
    uint64_t seed;
    std::string keys;  // of the order, moved by `noise`
    double noise = 0;
    int64_t rise = 0;  // units
    int64_t patience = 0;

    bool pointless(const Knowledge& known) const { return known.solved() || bytes >= known.best.height || (kind == kSearch && bytes < known.bound); }
};

class Rounds {
  public:
    // Without `conflicts` only kImprove is possible.
    Rounds(const Normal& problem, const Conflicts* conflicts, int32_t threads);

    void run(const std::vector<Job>& jobs, const Stop& stop, Knowledge& known);

  private:
    // What a job came to: `placement` is empty if it found none.
    struct Report {
        std::vector<int64_t> placement;
        std::string finder;
        bool none = false;  // there is none as low as asked for
        int64_t nodes = 0;
    };
    struct Worker {
        std::unique_ptr<Exact> exact;
    };
    class Round;

    Report work(const Job& job, const Knowledge& known, Worker& worker, const Stop& stop) const;
    void merge(const Job& job, Report& report, Knowledge& known) const;

    const Normal& problem_;
    const Conflicts* conflicts_;
    Orders orders_;
    std::vector<Worker> workers_;
};

}  // namespace ost::plan
