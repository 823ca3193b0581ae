#include "driver.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>

#include "conflicts.h"
#include "explorers.h"
#include "normalise.h"
#include "orders.h"
#include "portfolio.h"
#include "rounds.h"

namespace ost::plan {

namespace {

// Beyond these the exact search takes more time and memory than it is worth.
constexpr size_t kMostItems = 3000;
constexpr int64_t kMostConflicts = 20'000'000;

// Nodes of a round that a proof has before others: a small problem is soon searched through.
constexpr int64_t kProof = 4000;

// Orders of the search. No one wins everywhere: those by load and length do on most problems, those by area and size where these fail.
constexpr std::array<const char*, 8> kOrders = {"TWA", "TLB", "TAW", "WTA", "LTB", "AWT", "TBL", "ZWT"};

class Solve {
  public:
    Solve(const Normal& problem, int64_t capacity, const Limits& limits, const Stop& stop)
        : problem_(problem), capacity_(capacity), limits_(limits), stop_(stop) {}

    Knowledge run() {
        known_.bound = problem_.bound;
        portfolio(problem_, stop_, known_.best);
        if (done()) return known_;
        std::optional<Conflicts> conflicts;
        if (problem_.items.size() <= kMostItems && problem_.conflicts <= kMostConflicts) conflicts.emplace(problem_);
        make_explorers(conflicts);
        while (!done()) {
            const std::vector<Job> jobs = next_jobs();
            if (jobs.empty()) break;
            run_round(problem_, jobs, limits_.threads, stop_, known_);
            ++round_;
        }
        return known_;
    }

  private:
    bool done() const { return known_.solved() || (capacity_ >= 0 && known_.bound > capacity_) || nodes_left() <= 0 || stop_.now(); }
    int64_t nodes_left() const { return limits_.nodes < 0 ? std::numeric_limits<int64_t>::max() : limits_.nodes - known_.nodes; }

    void make_explorers(const std::optional<Conflicts>& conflicts) {
        improvement_ = make_improvement(problem_, seed());
        if (!conflicts) return;
        const Orders orders(problem_);
        for (const char* keys : kOrders) restarts_.push_back(make_restarts(*conflicts, orders, keys, seed()));
        for (const char* keys : kOrders) dives_.push_back(make_dives(*conflicts, orders, keys, seed()));
        rung_ = make_restarts(*conflicts, orders, kOrders[0], seed());
        refutation_ = make_proof(*conflicts, orders, kOrders[0]);
        proof_ = make_proof(*conflicts, orders, kOrders[0]);
    }
    uint64_t seed() { return limits_.seed * 1'000'003 + ++seeds_ * 0x2545f4914f6cdd1d; }

    // A dive by each order, then a search at the bound by each; afterwards these in turn, beside two proofs, the rungs between bound and best, and local search.
    // That alone where the problem is too large for the others.
    std::vector<Job> next_jobs() {
        left_ = nodes_left();
        std::vector<Job> jobs;
        const int64_t few = 2 * static_cast<int64_t>(problem_.items.size()) + 100;
        if (restarts_.empty()) {
            add(*improvement_, known_.bound, 16 * few, jobs);
        } else if (round_ == 0) {
            for (const auto& explorer : dives_) add(*explorer, known_.bound, 2 * few, jobs);
        } else if (round_ == 1) {
            for (const auto& explorer : restarts_) add(*explorer, known_.bound, few, jobs);
        } else {
            const int64_t gap = known_.best.height - known_.bound;
            const bool over = capacity_ >= 0 && capacity_ < known_.best.height;
            add(*proof_, over ? capacity_ : known_.best.height - 1, 8 * few + kProof, jobs);
            add(*refutation_, known_.bound, 8 * few + kProof, jobs);
            add(*rung_, known_.bound + gap / (int64_t{8} >> round_ % 3), 8 * few, jobs);
            for (size_t i = 0; i < kOrders.size(); ++i) {
                add(*dives_[i], known_.bound, 8 * few, jobs);
                if ((static_cast<size_t>(round_) + i) % 2 == 0) add(*restarts_[i], known_.bound, 8 * few, jobs);
            }
            add(*improvement_, known_.bound, 16 * few, jobs);
        }
        return jobs;
    }

    void add(Explorer& explorer, int64_t bytes, int64_t nodes, std::vector<Job>& jobs) {
        nodes = std::min(nodes, left_);
        left_ -= nodes;
        if (nodes > 0) jobs.push_back({&explorer, bytes, nodes});
    }

    const Normal& problem_;
    const int64_t capacity_;
    const Limits& limits_;
    const Stop& stop_;
    Knowledge known_;
    std::vector<std::unique_ptr<Explorer>> restarts_;  // at the bound, one for each order
    std::vector<std::unique_ptr<Explorer>> dives_;
    std::unique_ptr<Explorer> rung_;
    std::unique_ptr<Explorer> refutation_;  // of the bound
    std::unique_ptr<Explorer> proof_;       // that nothing is lower than the best, or within the capacity
    std::unique_ptr<Explorer> improvement_;
    int64_t round_ = 0;
    int64_t left_ = 0;  // nodes that the jobs of a round may still be given
    uint64_t seeds_ = 0;
};

}  // namespace

Result solve(const std::vector<Buffer>& buffers, int64_t capacity, const Limits& limits, const Stop& stop) {
    const Normal problem = normalise(buffers, stop);
    const Knowledge known = Solve(problem, capacity, limits, stop).run();
    Result result;
    result.offsets.resize(buffers.size());
    for (size_t b = 0; b < buffers.size(); ++b) result.offsets[b] = std::max<int64_t>(buffers[b].fixed, 0);
    for (size_t i = 0; i < problem.items.size(); ++i) result.offsets[problem.buffer_of[i]] = known.best.offsets[i] * problem.unit;
    result.height = known.best.height;
    result.bound = known.bound;
    result.bound_time = problem.bound_time;
    result.nodes = known.nodes;
    result.stopped = stop.now();
    result.finder = known.best.finder;
    return result;
}

}  // namespace ost::plan
