#include "driver.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "normalise.h"
#include "portfolio.h"
#include "rounds.h"

namespace ost::plan {

namespace {

constexpr int64_t kMostConflicts = 20'000'000;  // beyond it the exact search would need more memory and time than it is worth
constexpr int64_t kFewestNodes = 500;           // of a search of a round, besides two for each item

// Orders of the search. No one wins everywhere: those by load and length do on most problems, those by area and size where these fail.
constexpr std::array<const char*, 8> kOrders = {"TWA", "TLB", "TAW", "WTA", "LTB", "AWT", "TBL", "ZWT"};
constexpr std::array<double, 3> kNoises = {0.01, 0.03, 0.1};
constexpr std::array<int64_t, 3> kPatiences = {10, 100, 1000};
constexpr std::array<int64_t, 3> kRises = {500, 100, 2000};  // parts of the bound that a target rises by

// 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 ...: restarts that come within a logarithm of the best length of a run, whatever that is (M. Luby, A. Sinclair, D. Zuckerman,
// "Optimal speedup of Las Vegas algorithms", 1993).
int64_t luby(int64_t index) {
    for (int64_t length = 1;; length = 2 * length + 1) {
        if (index == length) return (length + 1) / 2;
        if (index > length && index <= 2 * length) return luby(index - length);
    }
}

class Solve {
  public:
    Solve(const Normal& problem, int64_t capacity, const Limits& limits, const Stop& stop)
        : problem_(problem), capacity_(capacity), limits_(limits), stop_(stop) {}

    Knowledge run() {
        known_.bound = problem_.bound;
        portfolio(problem_, stop_, known_.best);
        if (done()) return known_;
        std::optional<Conflicts> conflicts;
        if (problem_.conflicts <= kMostConflicts) conflicts.emplace(problem_);
        Rounds rounds(problem_, conflicts ? &*conflicts : nullptr, limits_.threads);
        for (int64_t round = 0; !done(); ++round) {
            std::vector<Job> jobs;
            add_jobs(round, conflicts.has_value(), jobs);
            if (jobs.empty()) break;
            rounds.run(jobs, stop_, known_);
        }
        return known_;
    }

  private:
    bool done() const { return known_.solved() || (capacity_ >= 0 && known_.bound > capacity_) || nodes_left() <= 0 || stop_.now(); }
    int64_t nodes_left() const { return limits_.nodes < 0 ? std::numeric_limits<int64_t>::max() : limits_.nodes - known_.nodes; }

    void add_jobs(int64_t round, bool exact, std::vector<Job>& jobs) {
        left_ = nodes_left();
        if (!exact) {
            add({Job::kImprove, known_.bound, most_nodes(8), seed(round, 0), "improve"}, jobs);
        } else if (round == 0 || round == 2) {
            for (const char* keys : kOrders) add({Job::kSearch, known_.bound, most_nodes(round == 0 ? 1 : 8), 0, keys}, jobs);
        } else if (round % 2 == 1) {
            for (size_t i = 0; i < kOrders.size(); ++i) {
                const double noise = round == 1 ? 0 : kNoises[(round / 2 + i) % kNoises.size()];
                const int64_t rise = std::max<int64_t>(1, known_.bound / problem_.unit / kRises[(round / 2 / 3) % kRises.size()]);
                add({Job::kDive, known_.bound, most_nodes(8), seed(round, i), kOrders[i], noise, rise, kPatiences[(round / 2) % kPatiences.size()]}, jobs);
            }
        } else {
            const int64_t gap = known_.best.height - known_.bound;
            const bool over = capacity_ >= 0 && capacity_ < known_.best.height;
            const std::array<int64_t, 8> targets = {0, over ? capacity_ - known_.bound : gap - 1, 0, gap / 8, 0, gap / 4, gap - 1, gap / 2};
            const int64_t nodes = most_nodes(luby(round / 2));
            for (size_t i = 0; i < targets.size(); ++i) {
                const double noise = kNoises[(round / 2 + i) % kNoises.size()];
                const char* keys = kOrders[(round / 2 + i) % kOrders.size()];
                add({Job::kSearch, known_.bound + targets[i], nodes, seed(round, i), keys, noise}, jobs);
            }
        }
    }

    int64_t most_nodes(int64_t factor) const {
        return factor * (kFewestNodes + 2 * static_cast<int64_t>(problem_.items.size()));
    }
    uint64_t seed(int64_t round, size_t job) const { return (limits_.seed * 1'000'003 + round) * 1'000'003 + job; }

    void add(Job job, std::vector<Job>& jobs) {
        job.nodes = std::min(job.nodes, left_);
        left_ -= job.nodes;
        if (job.nodes > 0) jobs.push_back(std::move(job));
    }

    const Normal& problem_;
    const int64_t capacity_;
    const Limits& limits_;
    const Stop& stop_;
    Knowledge known_;
    int64_t left_ = 0;  // nodes that the jobs of a round may still be given
};

}  // namespace

Result solve(const std::vector<Buffer>& buffers, int64_t capacity, const Limits& limits, const Stop& stop) {
    const Normal problem = normalise(buffers);
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
