#include "skyline.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace ost::plan {

namespace {

constexpr int32_t kErased = std::numeric_limits<int32_t>::max();
constexpr int64_t kNone = -1;
constexpr int64_t kEdge = std::numeric_limits<int64_t>::max();  // height beyond the first and the last section

}  // namespace

LifeTree::LifeTree(const std::vector<Item>& items) : items_(items), leaves_(1), order_(items.size()), place_(items.size()) {
    while (leaves_ * kLeaf < items.size()) leaves_ *= 2;
    std::iota(order_.begin(), order_.end(), 0);
    nodes_.resize(2 * leaves_);
    halve(1, 0, leaves_, false);
    for (size_t place = 0; place < order_.size(); ++place) place_[order_[place]] = static_cast<int32_t>(place);
}

// Orders the items of the leaves [begin, end) below `node`. The tree is as deep as the logarithm of the number of items.
void LifeTree::halve(size_t node, size_t begin, size_t end, bool by_end) {
    const auto from = order_.begin() + std::min(order_.size(), begin * kLeaf);
    const auto to = order_.begin() + std::min(order_.size(), end * kLeaf);
    nodes_[node] = {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(), kErased};
    for (auto i = from; i != to; ++i) {
        nodes_[node].latest_first = std::max(nodes_[node].latest_first, items_[*i].first);
        nodes_[node].earliest_last = std::min(nodes_[node].earliest_last, items_[*i].last);
    }
    if (end - begin == 1) return;
    const size_t middle = (begin + end) / 2;
    if (middle * kLeaf < order_.size()) {
        std::nth_element(from, order_.begin() + middle * kLeaf, to, [&](int32_t a, int32_t b) {
            return by_end ? items_[a].last < items_[b].last : items_[a].first < items_[b].first;
        });
    }
    halve(2 * node, begin, middle, !by_end);
    halve(2 * node + 1, middle, end, !by_end);
}

void LifeTree::fill(const std::vector<int32_t>& rank) {
    rank_.resize(order_.size());
    for (size_t place = 0; place < order_.size(); ++place) rank_[place] = rank[order_[place]];
    for (size_t node = 2 * leaves_; node-- > 1;) summarise(node);
}

void LifeTree::summarise(size_t node) {
    if (node < leaves_) {
        nodes_[node].lowest_rank = std::min(nodes_[2 * node].lowest_rank, nodes_[2 * node + 1].lowest_rank);
        return;
    }
    int32_t lowest = kErased;
    const size_t end = std::min(order_.size(), (node - leaves_ + 1) * kLeaf);
    for (size_t place = (node - leaves_) * kLeaf; place < end; ++place) lowest = std::min(lowest, rank_[place]);
    nodes_[node].lowest_rank = lowest;
}

int32_t LifeTree::find(int32_t first, int32_t last) {
    int32_t found = -1;
    int32_t lowest = kErased;
    stack_.assign(1, 1);
    while (!stack_.empty()) {
        const size_t x = stack_.back();
        stack_.pop_back();
        const Node& node = nodes_[x];
        if (node.lowest_rank >= lowest || node.latest_first < first || node.earliest_last > last) continue;
        if (x < leaves_) {
            const bool right_first = nodes_[2 * x + 1].lowest_rank < nodes_[2 * x].lowest_rank;
            stack_.push_back(2 * x + (right_first ? 0 : 1));
            stack_.push_back(2 * x + (right_first ? 1 : 0));
            continue;
        }
        const size_t end = std::min(order_.size(), (x - leaves_ + 1) * kLeaf);
        for (size_t place = (x - leaves_) * kLeaf; place < end; ++place) {
            const Item& item = items_[order_[place]];
            if (rank_[place] >= lowest || item.first < first || item.last > last) continue;
            lowest = rank_[place];
            found = order_[place];
        }
    }
    return found;
}

void LifeTree::erase(int32_t item) {
    rank_[place_[item]] = kErased;
    for (size_t node = leaves_ + place_[item] / kLeaf; node > 0; node /= 2) summarise(node);
}

Skyline::Skyline(const Normal& problem)
    : problem_(problem),
      lives_(problem.items),
      obstacles_(problem.obstacles, problem.sections),
      height_(problem.sections),
      end_(problem.sections),
      begin_(problem.sections + 1) {}

bool Skyline::place(const std::vector<int32_t>& rank, const Stop& stop, bool whole) {
    lives_.fill(rank);
    heap_.clear();
    std::fill(height_.begin(), height_.end(), kNone);
    make(0, problem_.sections, 0);
    offsets_.assign(problem_.items.size(), 0);
    for (size_t left = problem_.items.size(); left > 0;) {
        if (stop.now() && !whole) return false;
        const Valley valley = lowest();
        const int32_t item = lives_.find(valley.begin, valley.end);
        if (item < 0) {
            raise(valley);
            continue;
        }
        offsets_[item] = next_free(item, height_[valley.begin]);
        cover(valley, item, offsets_[item] + problem_.items[item].size);
        lives_.erase(item);
        --left;
    }
    return true;
}

Skyline::Valley Skyline::lowest() {
    while (true) {
        const Entry entry = heap_.front();
        if (height_[entry.begin] == entry.height) return {entry.begin, end_[entry.begin]};
        std::pop_heap(heap_.begin(), heap_.end());
        heap_.pop_back();
    }
}

// Makes a stretch, as one with its neighbours where these are as high.
void Skyline::make(int32_t begin, int32_t end, int64_t height) {
    if (begin > 0 && height_[begin_[begin]] == height) {
        const int32_t before = begin_[begin];
        height_[begin] = kNone;
        begin = before;
    }
    if (end < problem_.sections && height_[end] == height) {
        const int32_t after = end_[end];
        height_[end] = kNone;
        end = after;
    }
    height_[begin] = height;
    end_[begin] = end;
    begin_[end] = begin;
    heap_.push_back({height, begin});
    std::push_heap(heap_.begin(), heap_.end());
}

void Skyline::raise(const Valley& valley) {
    const int64_t left = valley.begin > 0 ? height_[begin_[valley.begin]] : kEdge;
    const int64_t right = valley.end < problem_.sections ? height_[valley.end] : kEdge;
    make(valley.begin, valley.end, std::min(left, right));
}

void Skyline::cover(const Valley& valley, int32_t item, int64_t top) {
    const int64_t floor = height_[valley.begin];
    const int32_t first = problem_.items[item].first;
    const int32_t last = problem_.items[item].last;
    const auto rest = [&](int32_t begin, int32_t end) {
        if (begin == end) return;
        height_[begin] = floor;
        end_[begin] = end;
        begin_[end] = begin;
        heap_.push_back({floor, begin});
        std::push_heap(heap_.begin(), heap_.end());
    };
    height_[valley.begin] = kNone;
    rest(valley.begin, first);
    rest(last, valley.end);
    make(first, last, top);
}

int64_t Skyline::next_free(int32_t item, int64_t offset) {
    const Item& placed = problem_.items[item];
    met_.clear();
    offset = align_up(offset, placed.alignment);
    obstacles_.each(placed.first, placed.last, [&](int32_t o) {
        if (problem_.obstacles[o].high > offset) met_.push_back(problem_.obstacles[o]);
    });
    // a heap: of thousands above each other the lowest few are all it takes
    const auto higher = [](const Obstacle& a, const Obstacle& b) { return a.low > b.low; };
    std::make_heap(met_.begin(), met_.end(), higher);
    for (; !met_.empty() && met_.front().low - placed.size < offset; met_.pop_back()) {
        if (met_.front().high > offset) offset = align_up(met_.front().high, placed.alignment);
        std::pop_heap(met_.begin(), met_.end(), higher);
    }
    return offset;
}

}  // namespace ost::plan
