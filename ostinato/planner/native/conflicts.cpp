#include "conflicts.h"

#include <algorithm>
#include <numeric>

namespace ost::plan {

namespace {

// Calls `meet(earlier, later)` for every pair of an entry of `earlier` and one of `later` that share a section; of two entries of the same list (then both
// arguments are that list) once. Lists are in ascending order of `first`; each pair is met where the later one of the two begins.
template <typename A, typename B, typename Meet>
void meet_all(const std::vector<A>& those, const std::vector<B>& begun, bool same, Meet meet) {
    std::vector<int32_t> alive;  // of `those`; the dead are left out in passing
    size_t next = 0;
    for (size_t i = 0; i < begun.size(); ++i) {
        for (; next < those.size() && (same ? next < i : those[next].first <= begun[i].first); ++next) {
            alive.push_back(static_cast<int32_t>(next));
        }
        size_t kept = 0;
        for (const int32_t other : alive) {
            if (those[other].last <= begun[i].first) continue;
            alive[kept++] = other;
            meet(other, static_cast<int32_t>(i));
        }
        alive.resize(kept);
    }
}

Rows<int32_t> find_neighbours(const std::vector<Item>& items) {
    return Rows<int32_t>(items.size(), [&](auto put) {
        meet_all(items, items, true, [&](int32_t a, int32_t b) {
            put(a, b);
            put(b, a);
        });
    });
}

Rows<int32_t> find_members(const Normal& problem) {
    return Rows<int32_t>(problem.sections, [&](auto put) {
        for (size_t i = 0; i < problem.items.size(); ++i) {
            for (int32_t s = problem.items[i].first; s < problem.items[i].last; ++s) put(s, static_cast<int32_t>(i));
        }
    });
}

Rows<Obstacle> find_obstacles(const Normal& problem) {
    std::vector<std::vector<int32_t>> of(problem.items.size());
    meet_all(problem.obstacles, problem.items, false, [&](int32_t o, int32_t i) { of[i].push_back(o); });
    meet_all(problem.items, problem.obstacles, false, [&](int32_t i, int32_t o) {
        if (problem.obstacles[o].first > problem.items[i].first) of[i].push_back(o);
    });
    for (std::vector<int32_t>& list : of) {
        std::sort(list.begin(), list.end(), [&](int32_t a, int32_t b) {
            const Obstacle& x = problem.obstacles[a];
            const Obstacle& y = problem.obstacles[b];
            return x.low != y.low ? x.low < y.low : x.high != y.high ? x.high < y.high : a < b;
        });
    }
    return Rows<Obstacle>(problem.items.size(), [&](auto put) {
        for (size_t i = 0; i < of.size(); ++i) {
            for (const int32_t o : of[i]) put(i, problem.obstacles[o]);
        }
    });
}

Rows<Blocked> find_blocked(const Normal& problem) {
    std::vector<int32_t> ascending(problem.obstacles.size());
    std::iota(ascending.begin(), ascending.end(), 0);
    std::stable_sort(ascending.begin(), ascending.end(),
                     [&](int32_t a, int32_t b) { return problem.obstacles[a].low < problem.obstacles[b].low; });
    std::vector<std::vector<Blocked>> of(problem.sections);
    for (const int32_t o : ascending) {
        const Obstacle& obstacle = problem.obstacles[o];
        for (int32_t s = obstacle.first; s < obstacle.last; ++s) {
            // fixed offsets that collide are the caller's fault and count once
            if (!of[s].empty() && of[s].back().high >= obstacle.low) {
                of[s].back().high = std::max(of[s].back().high, obstacle.high);
            } else {
                of[s].push_back({obstacle.low, obstacle.high, 0});
            }
        }
    }
    for (std::vector<Blocked>& list : of) {
        int64_t above = 0;
        for (size_t b = list.size(); b-- > 0;) list[b].from_here = above += list[b].high - list[b].low;
    }
    return Rows<Blocked>(problem.sections, [&](auto put) {
        for (int32_t s = 0; s < problem.sections; ++s) {
            for (const Blocked& b : of[s]) put(s, b);
        }
    });
}

}  // namespace

Conflicts::Conflicts(const Normal& normal)
    : problem(normal),
      neighbours(find_neighbours(normal.items)),
      members(find_members(normal)),
      obstacles(find_obstacles(normal)),
      blocked(find_blocked(normal)) {}

}  // namespace ost::plan
