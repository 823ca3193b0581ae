#include "portfolio.h"

#include <algorithm>
#include <array>
#include <string>

#include "orders.h"
#include "skyline.h"
#include "space.h"

namespace ost::plan {

namespace {

// Placed items and obstacles that best fit may look at: some tens of milliseconds, and more in the first run, whose order is at times far ahead of the
// skylines where these are far from the bound.
constexpr int64_t kMostLookedAt = 3'000'000;
constexpr int64_t kFirstLookedAt = 500;  // for each item

constexpr std::array<const char*, 6> kSkylines = {"TWZ", "WTZ", "LTB", "BLT", "TBL", "ZWT"};

struct Order {
    const char* name;
    const char* keys;
};
constexpr std::array<Order, 8> kOrders = {
    {{"size", "Z"}, {"area", "B"}, {"peak", "TZ"}, {"from_peak", "PZ"}, {"length", "LZ"}, {"start", "SZ"}, {"end", "EZ"}, {"long_area", "Q"}}};

// Places one item after another where nothing lies, the lowest such place or the one that it fills best. False once one cannot keep below `best`, and where
// `stop` or the budget ends it.
bool best_fit(const Normal& problem, const std::vector<int32_t>& order, bool tightest, const Incumbent& best, int64_t budget, const Stop& stop, Space& space,
              std::vector<int64_t>& offsets) {
    space.clear();
    for (const int32_t item : order) {
        if (space.looked_at() > budget || stop.now()) return false;
        const int64_t limit = problem.highest_offset(item, best.height - 1);
        if (limit < 0) return false;
        const Space::View view = space.look(item, limit);
        if (view.weight > 0) return false;
        const auto tighter = [](const Spot& a, const Spot& b) { return a.high - a.low < b.high - b.low; };
        const Spot& chosen = tightest ? *std::min_element(view.spots.begin(), view.spots.end(), tighter) : view.spots.front();
        offsets[item] = chosen.low;
        space.put(item, chosen.low, 1);
    }
    return true;
}

}  // namespace

void portfolio(const Normal& problem, const Stop& stop, Incumbent& best) {
    const Orders orders(problem);
    const auto done = [&] { return best.known() && (best.height <= problem.bound || stop.now()); };
    if (problem.items.empty()) {
        best.offer(problem, {}, "empty");
        return;
    }
    Skyline skyline(problem);
    for (const char* keys : kSkylines) {
        if (!skyline.place(orders.ranks(keys), stop, !best.known())) return;
        best.offer(problem, skyline.offsets(), std::string("skyline/") + keys);
        if (done()) return;
    }
    if (problem.obstacles.size() > Space::kMostObstacles) return;
    Space space(problem);
    std::vector<int32_t> order(problem.items.size());
    std::vector<int64_t> offsets(problem.items.size());
    int64_t budget = kMostLookedAt + kFirstLookedAt * static_cast<int64_t>(order.size());
    for (const Order& by : kOrders) {
        const std::vector<int32_t> rank = orders.ranks(by.keys);
        for (size_t item = 0; item < rank.size(); ++item) order[rank[item]] = static_cast<int32_t>(item);
        for (const bool tightest : {false, true}) {
            if (done() || space.looked_at() > budget) return;
            const bool placed = best_fit(problem, order, tightest, best, budget, stop, space, offsets);
            budget = kMostLookedAt;
            if (placed) best.offer(problem, offsets, std::string("best_fit/") + by.name + (tightest ? "/tightest" : "/lowest"));
        }
    }
}

}  // namespace ost::plan
