#include "explorers.h"

#include <algorithm>
#include <array>
#include <utility>

#include "ejection.h"

namespace ost::plan {

namespace {

constexpr int64_t kRise = 1000;  // part of the bound that a dive's target rises by
constexpr std::array<int64_t, 3> kPatiences = {30, 10, 100};  // dead ends that it takes

// 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 ...: lengths of restarts that come within a logarithm of the best length, whatever that is (M. Luby, A. Sinclair and
// D. Zuckerman, "Optimal speedup of Las Vegas algorithms", 1993).
int64_t luby(int64_t index) {
    for (int64_t length = 1;; length = 2 * length + 1) {
        if (index == length) return (length + 1) / 2;
        if (index < 2 * length + 1 && index > length) return luby(index - length);
    }
}

class Restarts : public Explorer {
  public:
    Restarts(const Conflicts& conflicts, const Orders& orders, const std::string& keys, uint64_t seed)
        : Explorer("search/" + keys), problem_(conflicts.problem), exact_(conflicts), order_(conflicts.problem, orders, keys, seed) {}

    Report work(int64_t bytes, int64_t nodes, const Knowledge&, const Stop& stop) override {
        Report report;
        report.lesson = lesson_;
        const int64_t shortest = 2 * static_cast<int64_t>(problem_.items.size()) + 100;
        while (report.nodes < nodes && !stop.now()) {
            const std::vector<int32_t> rank = order_.ranks(report.lesson);
            const int64_t length = std::min(shortest * luby(report.lesson.searches + 1), nodes - report.nodes);
            const Found found = exact_.search(Target::of(problem_, bytes), {&rank, length}, stop);
            report.nodes += exact_.nodes();
            report.none = found == Found::kNone;
            if (found == Found::kPlacement) report.placement = exact_.offsets();
            if (found == Found::kPlacement || found == Found::kNone) break;
            report.lesson.learn(exact_.failures());
        }
        return report;
    }

  private:
    const Normal& problem_;
    Exact exact_;
    LearningOrder order_;
};

class Dives : public Explorer {
  public:
    Dives(const Conflicts& conflicts, const Orders& orders, const std::string& keys, uint64_t seed)
        : Explorer("dive/" + keys), problem_(conflicts.problem), exact_(conflicts), order_(conflicts.problem, orders, keys, seed) {}

    bool pointless(int64_t, const Knowledge& known) const override { return known.solved(); }

    Report work(int64_t bytes, int64_t nodes, const Knowledge& known, const Stop& stop) override {
        Report report;
        report.lesson = lesson_;
        int64_t best = known.best.height;
        const int64_t begin = bytes / problem_.unit;
        while (report.nodes < nodes && best > bytes && !stop.now()) {
            const std::vector<int32_t> rank = order_.ranks(report.lesson);
            const int64_t patience = kPatiences[report.lesson.searches % kPatiences.size()];
            const Course course = {&rank, nodes - report.nodes, std::max<int64_t>(1, begin / kRise), patience, problem_.highest_end(best - 1)};
            const Found found = exact_.search({begin}, course, stop);
            report.nodes += exact_.nodes();
            report.lesson.learn(exact_.failures());
            if (found != Found::kPlacement) continue;
            const int64_t height = problem_.height(exact_.offsets());
            if (height >= best) continue;
            best = height;
            report.placement = exact_.offsets();
        }
        return report;
    }

  private:
    const Normal& problem_;
    Exact exact_;
    LearningOrder order_;
};

class Proof : public Explorer {
  public:
    Proof(const Conflicts& conflicts, const Orders& orders, const std::string& keys)
        : Explorer("proof/" + keys), problem_(conflicts.problem), exact_(conflicts), rank_(orders.ranks(keys)) {}

    Report work(int64_t bytes, int64_t nodes, const Knowledge&, const Stop& stop) override {
        const bool goes_on = bytes == bytes_;
        const int64_t before = goes_on ? exact_.nodes() : 0;
        const Found found = goes_on ? exact_.resume(nodes, stop) : exact_.search(Target::of(problem_, bytes), {&rank_, nodes}, stop);
        bytes_ = bytes;
        Report report;
        report.nodes = exact_.nodes() - before;
        report.none = found == Found::kNone;
        if (found == Found::kPlacement) report.placement = exact_.offsets();
        return report;
    }

  private:
    const Normal& problem_;
    Exact exact_;
    const std::vector<int32_t> rank_;
    int64_t bytes_ = -1;  // what the search that goes on keeps to
};

class Improvement : public Explorer {
  public:
    Improvement(const Normal& problem, uint64_t seed) : Explorer("ejection"), ejection_(problem, seed) {}

    bool pointless(int64_t, const Knowledge& known) const override { return known.solved(); }

    Report work(int64_t, int64_t nodes, const Knowledge& known, const Stop& stop) override {
        Report report;
        Incumbent best = known.best;
        report.nodes = ejection_.run(best, nodes, stop);
        if (best.height < known.best.height) report.placement = std::move(best.offsets);
        return report;
    }

  private:
    Ejection ejection_;
};

}  // namespace

std::unique_ptr<Explorer> make_restarts(const Conflicts& conflicts, const Orders& orders, const std::string& keys, uint64_t seed) {
    return std::make_unique<Restarts>(conflicts, orders, keys, seed);
}

std::unique_ptr<Explorer> make_dives(const Conflicts& conflicts, const Orders& orders, const std::string& keys, uint64_t seed) {
    return std::make_unique<Dives>(conflicts, orders, keys, seed);
}

std::unique_ptr<Explorer> make_proof(const Conflicts& conflicts, const Orders& orders, const std::string& keys) {
    return std::make_unique<Proof>(conflicts, orders, keys);
}

std::unique_ptr<Explorer> make_improvement(const Normal& problem, uint64_t seed) { return std::make_unique<Improvement>(problem, seed); }

}  // namespace ost::plan
