#include "normalise.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <queue>
#include <stdexcept>
#include <string>
#include <tuple>

namespace ost::plan {

namespace {

__extension__ typedef __int128 Wide;  // sums that must be looked at before they are known to fit

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

// Buffers that are not empty, in ascending order of their lives' begin.
std::vector<int32_t> in_order(const std::vector<Buffer>& buffers) {
    std::vector<int32_t> order;
    for (size_t i = 0; i < buffers.size(); ++i) {
        if (buffers[i].size > 0) order.push_back(static_cast<int32_t>(i));
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return buffers[a].lower < buffers[b].lower; });
    return order;
}

// The highest end that a placement may come to, by stretches of time that no life crosses: each item rests on another one, on a fixed buffer or on the
// ground, at the first multiple of its alignment.
int64_t worst_end(const std::vector<Buffer>& buffers, const std::vector<int32_t>& order, int64_t granule) {
    Wide worst = 0;
    for (size_t begin = 0; begin < order.size();) {
        const int64_t from = buffers[order[begin]].lower;
        int64_t to = from + 1;
        Wide sum = 0;
        Wide fixed = 0;
        size_t next = begin;
        for (; next < order.size() && buffers[order[next]].lower < to; ++next) {
            const Buffer& b = buffers[order[next]];
            const Wide padded = (static_cast<Wide>(b.size) + granule - 1) / granule * granule;
            to = std::max(to, b.upper);
            if (b.fixed >= 0) {
                fixed = std::max(fixed, b.fixed + padded);
            } else {
                sum += padded + b.alignment - granule;
            }
        }
        if (sum + fixed > kLargest) {
            throw std::overflow_error("the buffers that live in [" + std::to_string(from) + ", " + std::to_string(to) +
                                      ") could end above 2^63 - 1: their sizes, alignments and fixed offsets add up to more");
        }
        worst = std::max(worst, sum + fixed);
        begin = next;
    }
    return static_cast<int64_t>(worst);
}

// The largest number of which all padded sizes, fixed offsets and alignments are multiples, except alignments that it is a multiple of.
int64_t find_unit(const std::vector<Buffer>& buffers, const std::vector<int32_t>& order, int64_t granule) {
    int64_t unit = 0;
    for (const int32_t i : order) {
        unit = std::gcd(unit, align_up(buffers[i].size, granule));
        if (buffers[i].fixed >= 0) unit = std::gcd(unit, buffers[i].fixed);
    }
    for (bool again = true; again;) {
        again = false;
        for (const int32_t i : order) {
            const int64_t alignment = buffers[i].alignment;
            if (buffers[i].fixed >= 0 || unit % alignment == 0 || alignment % unit == 0) continue;
            unit = std::gcd(unit, alignment);
            again = true;
        }
    }
    return unit;
}

// The moments at which one life begins, at least, and one ends before the next moment: all other living sets are contained in a neighbour's.
struct Sections {
    std::vector<int64_t> moments;  // all begins and ends, ascending
    std::vector<int32_t> before;   // moment -> sections that lie before it
    std::vector<int64_t> begin;    // section -> its moment

    Sections(const std::vector<Buffer>& buffers, const std::vector<int32_t>& order) {
        std::vector<int64_t> ends;
        std::vector<int64_t> begins;
        for (const int32_t i : order) {
            begins.push_back(buffers[i].lower);
            ends.push_back(buffers[i].upper);
        }
        std::sort(ends.begin(), ends.end());
        std::merge(begins.begin(), begins.end(), ends.begin(), ends.end(), std::back_inserter(moments));
        moments.erase(std::unique(moments.begin(), moments.end()), moments.end());
        before.assign(moments.size(), 0);
        for (size_t m = 0; m + 1 < moments.size(); ++m) {
            const bool starts = std::binary_search(begins.begin(), begins.end(), moments[m]);
            const bool keep = starts && std::binary_search(ends.begin(), ends.end(), moments[m + 1]);
            if (keep) begin.push_back(moments[m]);
            before[m + 1] = before[m] + (keep ? 1 : 0);
        }
    }

    int32_t at(int64_t moment) const {
        return before[std::lower_bound(moments.begin(), moments.end(), moment) - moments.begin()];
    }
};

struct Life {
    int32_t first;
    int32_t last;
    int64_t padding;
};

// The load alone gives a bound: of those that live together only the topmost need not take its padding. `lives` are in ascending order of `first`.
void set_bound(Normal& problem, const std::vector<Life>& lives, const std::vector<int64_t>& begin) {
    using Padding = std::pair<int64_t, int32_t>;  // and the section in which it is gone
    std::priority_queue<Padding> paddings;
    size_t next = 0;
    for (int32_t s = 0; s < problem.sections; ++s) {
        for (; next < lives.size() && lives[next].first == s; ++next) paddings.push({lives[next].padding, lives[next].last});
        while (paddings.top().second <= s) paddings.pop();
        const int64_t bound = problem.load[s] * problem.unit - paddings.top().first;
        if (bound <= problem.bound) continue;
        problem.bound = bound;
        problem.bound_time = begin[s];
    }
    problem.bound = std::max(problem.bound, problem.pinned);
}

int64_t count_conflicts(const Normal& problem) {
    std::vector<int32_t> ending(problem.sections + 1, 0);
    std::vector<int32_t> freed(problem.sections + 1, 0);
    int64_t items = 0;
    int64_t obstacles = 0;
    int64_t count = 0;
    size_t item = 0;
    size_t obstacle = 0;
    for (int32_t s = 0; s < problem.sections; ++s) {
        items -= ending[s];
        obstacles -= freed[s];
        for (; obstacle < problem.obstacles.size() && problem.obstacles[obstacle].first == s; ++obstacle) {
            ++freed[problem.obstacles[obstacle].last];
            ++obstacles;
            count += items + problem.obstacles[obstacle].last - s;
        }
        for (; item < problem.items.size() && problem.items[item].first == s; ++item) {
            ++ending[problem.items[item].last];
            count += items++ + obstacles;
        }
    }
    return count;
}

}  // namespace

Normal normalise(const std::vector<Buffer>& buffers, const Stop& stop) {
    Normal problem;
    int64_t granule = 0;
    for (const Buffer& b : buffers) granule = std::gcd(granule, b.alignment);
    const std::vector<int32_t> order = in_order(buffers);
    const int64_t worst = worst_end(buffers, order, granule);
    for (const Buffer& b : buffers) {
        if (b.fixed < 0) continue;
        if (b.fixed > kLargest - b.size) throw std::overflow_error("a buffer fixed at " + std::to_string(b.fixed) + " ends above 2^63 - 1");
        problem.pinned = std::max(problem.pinned, b.fixed + b.size);
    }
    if (order.empty()) {
        problem.bound = problem.pinned;
        return problem;
    }

    const int64_t unit = problem.unit = find_unit(buffers, order, granule);
    problem.worst = worst / unit;
    const Sections sections(buffers, order);
    problem.sections = static_cast<int32_t>(sections.begin.size());
    std::vector<Wide> change(problem.sections + 1, 0);
    std::vector<Life> lives;
    std::map<std::tuple<int32_t, int32_t, int64_t, int64_t, int64_t>, int32_t> alike;
    for (const int32_t i : order) {
        stop.now();
        const Buffer& b = buffers[i];
        const int64_t padded = align_up(b.size, granule);
        const Life life = {sections.at(b.lower), sections.at(b.upper), padded - b.size};
        lives.push_back(life);
        change[life.first] += padded / unit;
        change[life.last] -= padded / unit;
        if (b.fixed >= 0) {
            problem.obstacles.push_back({life.first, life.last, b.fixed / unit, (b.fixed + padded) / unit});
            continue;
        }
        const int64_t alignment = unit % b.alignment == 0 ? 1 : b.alignment / unit;
        const double duration = static_cast<double>(b.upper) - static_cast<double>(b.lower);
        const int32_t next = static_cast<int32_t>(alike.size());
        const int32_t number = alike.try_emplace({life.first, life.last, padded, alignment, life.padding}, next).first->second;
        problem.items.push_back({life.first, life.last, padded / unit, alignment, life.padding, number, duration});
        problem.buffer_of.push_back(i);
        problem.padding.push_back(life.padding);
    }
    std::sort(problem.padding.begin(), problem.padding.end());
    problem.padding.erase(std::unique(problem.padding.begin(), problem.padding.end()), problem.padding.end());
    Wide load = 0;
    for (int32_t s = 0; s < problem.sections; ++s) {
        load += change[s];
        problem.load.push_back(static_cast<int64_t>(std::min<Wide>(load, problem.worst)));  // only fixed offsets that collide come to more
    }
    set_bound(problem, lives, sections.begin);
    problem.conflicts = count_conflicts(problem);
    return problem;
}

int64_t Normal::height(const std::vector<int64_t>& offsets) const {
    int64_t highest = pinned;
    for (size_t i = 0; i < items.size(); ++i) {
        highest = std::max(highest, (offsets[i] + items[i].size) * unit - items[i].padding);
    }
    return highest;
}

// Unsigned: an end that no item comes to may lie beyond 2^63.
int64_t Normal::highest_end(int64_t bytes) const {
    const uint64_t most = padding.empty() ? 0 : padding.back();
    return static_cast<int64_t>((static_cast<uint64_t>(bytes) + most) / static_cast<uint64_t>(unit));
}

int64_t Normal::highest_offset(int32_t item, int64_t bytes) const {
    const uint64_t end = (static_cast<uint64_t>(bytes) + static_cast<uint64_t>(items[item].padding)) / static_cast<uint64_t>(unit);
    return static_cast<int64_t>(end) - items[item].size;
}

int64_t Normal::height_above(int64_t bytes) const {
    uint64_t lowest = kLargest;
    for (const int64_t unused : padding) {
        const uint64_t beyond = (static_cast<uint64_t>(bytes % unit) + static_cast<uint64_t>(unused)) % static_cast<uint64_t>(unit);
        lowest = std::min(lowest, static_cast<uint64_t>(bytes) + (static_cast<uint64_t>(unit) - beyond));
    }
    return static_cast<int64_t>(lowest);
}

bool Incumbent::offer(const Normal& problem, const std::vector<int64_t>& placement, const std::string& name) {
    const int64_t found = problem.height(placement);
    if (known() && found >= height) return false;
    offsets = placement;
    height = found;
    finder = name;
    return true;
}

}  // namespace ost::plan
