// The ways of looking for a lower placement, or for the proof that there is none. A solve has many, and each goes on where it left off in every round.
//
// What an explorer does depends on its own past, on the height it is to keep to and on what was known when the round began: not on threads or time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conflicts.h"
#include "exact.h"
#include "learning.h"
#include "orders.h"
#include "problem.h"
#include "stop.h"

namespace ost::plan {

// What is known of a problem in the course of a solve.
struct Knowledge {
    Incumbent best;
    int64_t bound = 0;  // bytes: no placement is lower
    int64_t nodes = 0;  // spent

    bool solved() const { return best.height <= bound; }
};

// What came of an explorer's work.
struct Report {
    std::vector<int64_t> placement;  // empty: none
    bool none = false;               // there is none as low as it was asked to keep to
    int64_t nodes = 0;
    Lesson lesson;
};

class Explorer {
  public:
    explicit Explorer(std::string name) : name_(std::move(name)) {}
    virtual ~Explorer() = default;

    const std::string& name() const { return name_; }
    // Works for at most `nodes` nodes (kept by the caller above 0).
    virtual Report work(int64_t bytes, int64_t nodes, const Knowledge& known, const Stop& stop) = 0;
    // Whether a placement of `bytes` or less would be news, or the proof that there is none.
    virtual bool pointless(int64_t bytes, const Knowledge& known) const { return known.solved() || bytes >= known.best.height || bytes < known.bound; }
    // Called between pieces of work with the report of the last one if it counts.
    void learn(Lesson&& lesson) { lesson_ = std::move(lesson); }

  protected:
    Lesson lesson_;

  private:
    std::string name_;
};

// Short searches from the start, each by an order that the ones before it have taught.
std::unique_ptr<Explorer> make_restarts(const Conflicts& conflicts, const Orders& orders, const std::string& keys, uint64_t seed);

// The same with dives, whose target rises from the height given to below the best known.
std::unique_ptr<Explorer> make_dives(const Conflicts& conflicts, const Orders& orders, const std::string& keys, uint64_t seed);

// One search that goes on, until it has found a placement or proven that there is none; another height begins another search.
std::unique_ptr<Explorer> make_proof(const Conflicts& conflicts, const Orders& orders, const std::string& keys);

// Local search from the best placement.
std::unique_ptr<Explorer> make_improvement(const Normal& problem, uint64_t seed);

}  // namespace ost::plan
