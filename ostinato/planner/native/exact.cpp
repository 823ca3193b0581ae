#include "exact.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace ost::plan {

namespace {

constexpr int64_t kPlaced = std::numeric_limits<int64_t>::max();
constexpr int64_t kNowhere = std::numeric_limits<int64_t>::max();
constexpr int64_t kNodesPerLook = 64;  // at the clock

}  // namespace

Target Target::of(const Normal& problem, int64_t bytes) {
    const int64_t end = problem.highest_end(bytes);
    // an item that ends at `end` takes end * unit - padding bytes
    const uint64_t whole = static_cast<uint64_t>(end) * static_cast<uint64_t>(problem.unit);
    return {end, whole > static_cast<uint64_t>(bytes) ? static_cast<int64_t>(whole - static_cast<uint64_t>(bytes)) : 0};
}

Exact::Exact(const Conflicts& conflicts)
    : conflicts_(conflicts),
      items_(conflicts.problem.items),
      count_(static_cast<int32_t>(items_.size())),
      sections_(conflicts.problem.sections),
      has_obstacles_(!conflicts.problem.obstacles.empty()) {
    for (const Item& item : items_) size_.push_back(item.size);
}

int64_t Exact::next_free(int32_t item, int64_t offset) const {
    const int64_t alignment = items_[item].alignment;
    if (alignment != 1) offset = align_up(offset, alignment);
    if (!has_obstacles_) return offset;
    for (const Obstacle& o : conflicts_.obstacles[item]) {
        if (o.high <= offset) continue;
        if (o.low - size_[item] >= offset) break;
        offset = align_up(o.high, alignment);
    }
    return offset;
}

// Units blocked in a section above an offset.
inline int64_t Exact::blocked_above(int32_t section, int64_t offset) const {
    const auto list = conflicts_.blocked[section];
    const Blocked* next = std::upper_bound(list.begin(), list.end(), offset, [](int64_t value, const Blocked& b) { return value < b.high; });
    return next == list.end() ? 0 : next->from_here - std::max<int64_t>(0, offset - next->low);
}

// Makes room on the trail, so that `raise` need not look.
void Exact::reserve_changes(size_t count) {
    if (trail_.size() < changes_ + count) trail_.resize(2 * (changes_ + count));
}

inline void Exact::raise(int32_t item, int64_t floor, int64_t low, int64_t end) {
    trail_[changes_++] = {item, floor_[item], low_[item]};
    floor_[item] = floor;
    low_[item] = low;
    end_[item] = end;
}

void Exact::undo(size_t mark) {
    while (changes_ > mark) {
        const Change& change = trail_[--changes_];
        floor_[change.item] = change.floor;
        low_[change.item] = change.low;
        end_[change.item] = change.low + size_[change.item];
    }
}

// Whether an item left in a section lies so low that all that is left there may fit on it. Where it does, so does the lowest one: an offset plus what is
// blocked above it never falls as it grows.
inline bool Exact::leaves_room(int32_t item, int32_t section, int64_t room) const {
    return low_[item] <= room && (!has_obstacles_ || blocked_above(section, low_[item]) <= room - low_[item]);
}

bool Exact::find_witness(int32_t section, int64_t room) {
    for (const int32_t i : conflicts_.members[section]) {
        if (!leaves_room(i, section, room)) continue;
        witness_[section] = i;
        return true;
    }
    return false;
}

bool Exact::fits(int32_t first, int32_t last) {
    for (int32_t s = first; s < last; ++s) {
        const int64_t room = target_ - load_[s];
        if (leaves_room(witness_[s], s, room) || load_[s] == 0 || find_witness(s, room)) continue;
        ++failures_[s];
        return false;
    }
    return true;
}

// Puts an item on its floor. False: what is left cannot keep to the target.
bool Exact::place(int32_t item) {
    const Item& placed = items_[item];
    const int64_t top = (offsets_[item] = floor_[item]) + placed.size;
    reserve_changes(conflicts_.neighbours[item].size() + 1);
    raise(item, kPlaced, kPlaced, kPlaced);
    if (++placed_ > most_placed_) {
        most_placed_ = placed_;
        raised_ = 0;
    }
    for (int32_t s = placed.first; s < placed.last; ++s) load_[s] -= placed.size;
    bool cut = false;
    for (int32_t s = placed.first + 1; s < placed.last; ++s) cut |= --crossing_[s] == 0;
    cut_ = cut;
    int32_t first = placed.first;
    int32_t last = placed.last;
    for (const int32_t j : conflicts_.neighbours[item]) {
        if (floor_[j] >= top) continue;
        const int64_t floor = next_free(j, top);
        if (low_[j] >= floor) {
            raise(j, floor, low_[j], end_[j]);
            continue;
        }
        if (too_high(j, floor)) return false;
        raise(j, floor, floor, floor + size_[j]);
        first = std::min(first, items_[j].first);
        last = std::max(last, items_[j].last);
    }
    return fits(first, last);
}

// Takes the chosen item up again and forgets what followed from it.
int32_t Exact::take_back(Frame& frame) {
    const int32_t item = std::exchange(frame.item, -1);
    const Item& placed = items_[item];
    for (int32_t s = placed.first; s < placed.last; ++s) load_[s] += placed.size;
    for (int32_t s = placed.first + 1; s < placed.last; ++s) ++crossing_[s];
    --placed_;
    undo(frame.trail);
    parts_.resize(frame.parts);
    return item;
}

// The item, which could be placed on its floor, is passed over: it rests on something that is not placed yet and lies no lower.
bool Exact::lift(int32_t item) {
    const int64_t offset = floor_[item];
    int64_t rest = kNowhere;
    for (const int32_t k : conflicts_.neighbours[item]) {
        // unsigned: of what is placed the sum may be anything, and its end is larger
        const uint64_t top = static_cast<uint64_t>(offset) + static_cast<uint64_t>(size_[k]);
        rest = std::min(rest, std::max(end_[k], static_cast<int64_t>(top)));
    }
    if (rest == kNowhere) return false;
    rest = next_free(item, rest);
    if (too_high(item, rest)) return false;
    if (rest <= low_[item]) return true;
    reserve_changes(1);
    raise(item, offset, rest, rest + size_[item]);
    return fits(items_[item].first, items_[item].last);
}

// Items that may come next: on their floor, and below the lowest possible end.
void Exact::gather(Frame& frame) {
    candidates_.resize(frame.candidates);
    int64_t lowest_end = kNowhere;
    for (int32_t i = frame.part.begin; i < frame.part.end; ++i) {
        lowest_end = std::min(lowest_end, end_[i]);
        if (low_[i] < lowest_end && low_[i] == floor_[i]) candidates_.push_back(i);
    }
    const auto high = [&](int32_t i) { return low_[i] >= lowest_end; };
    candidates_.erase(std::remove_if(candidates_.begin() + frame.candidates, candidates_.end(), high), candidates_.end());
    frame.tried = frame.candidates;
    frame.outer = changes_;
}

// The untried candidate that lies lowest, of these the one of the lowest rank; it counts as tried.
int32_t Exact::next_candidate(Frame& frame) {
    const std::vector<int32_t>& rank = *course_.rank;
    size_t best = frame.tried;
    for (size_t c = best + 1; c < candidates_.size(); ++c) {
        const int32_t a = candidates_[c];
        const int32_t b = candidates_[best];
        if (low_[a] != low_[b] ? low_[a] < low_[b] : rank[a] < rank[b]) best = c;
    }
    std::swap(candidates_[frame.tried], candidates_[best]);
    return candidates_[frame.tried++];
}

// Divides what is left of a part where no item crosses; the smallest come first, since one that fails fails all. Returns the first of them, or what follows
// the part if nothing is left of it.
int32_t Exact::split(Part rest, bool cut) {
    while (rest.begin < rest.end && low_[rest.begin] == kPlaced) ++rest.begin;
    while (rest.begin < rest.end && low_[rest.end - 1] == kPlaced) --rest.end;
    if (rest.begin == rest.end) return rest.next;
    if (!cut) {
        parts_.push_back(rest);
        return static_cast<int32_t>(parts_.size()) - 1;
    }
    std::vector<std::pair<int32_t, Part>> pieces;  // with the number of items
    int32_t last = 0;
    for (int32_t i = rest.begin; i < rest.end; ++i) {
        if (low_[i] == kPlaced) continue;
        if (pieces.empty() || items_[i].first >= last) pieces.push_back({0, {i, i, rest.owner, -1}});
        last = std::max(last, items_[i].last);
        ++pieces.back().first;
        pieces.back().second.end = i + 1;
    }
    std::stable_sort(pieces.begin(), pieces.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    int32_t next = rest.next;
    for (auto& [size, part] : pieces) {
        part.next = next;
        next = static_cast<int32_t>(parts_.size());
        parts_.push_back(part);
    }
    return next;
}

bool Exact::twin_failed(const Frame& frame, int32_t item) const {
    for (size_t c = frame.candidates; c + 1 < frame.tried; ++c) {
        if (items_[candidates_[c]].alike == items_[item].alike) return true;
    }
    return false;
}

void Exact::enter(const Part& part) {
    frames_.push_back({part, candidates_.size(), 0, 0, 0, 0, -1});
    gather(frames_.back());
}

// With a rising target: whether a frame that has nothing left to try raises it. Those that nothing stands behind do.
bool Exact::rises(const Frame& frame) {
    return course_.rise > 0 && (++dead_ends_ > course_.patience || frame.part.owner < 0);
}

// Raises the target at this node and looks at all its items anew. False: the search ends.
bool Exact::rise(Frame& frame) {
    if (target_ >= course_.ceiling) {
        ended_ = Found::kLimit;
        return false;
    }
    dead_ends_ = 0;
    // a place that small steps do not free takes larger ones
    const int64_t doublings = std::min<int64_t>(raised_++, 20);
    const bool beyond = course_.rise > (course_.ceiling - target_) >> doublings;
    target_ = beyond ? course_.ceiling : target_ + (course_.rise << doublings);
    // what was concluded above this node held for the lower target
    undo(frame.outer);
    reserve_changes(frame.part.end - frame.part.begin);
    for (int32_t i = frame.part.begin; i < frame.part.end; ++i) {
        if (low_[i] != floor_[i]) raise(i, floor_[i], floor_[i], floor_[i] + size_[i]);
    }
    gather(frame);
    return count_node();
}

// Back to the node whose choice brought the part of the last frame about.
void Exact::leave() {
    const int32_t owner = frames_.back().part.owner;
    while (static_cast<int32_t>(frames_.size()) > owner + 1) {
        Frame& frame = frames_.back();
        if (frame.item >= 0) take_back(frame);
        undo(frame.outer);
        candidates_.resize(frame.candidates);
        frames_.pop_back();
    }
}

// The choice of a frame failed: the item is not the next one.
void Exact::pass_over(Frame& frame, int32_t item) {
    if (!lift(item)) frame.tried = candidates_.size();
}

// Makes the next choice, at an earlier node where this one has none left. False: the search has ended.
bool Exact::advance() {
    while (!frames_.empty()) {
        Frame& frame = frames_.back();
        if (frame.tried == candidates_.size()) {
            if (rises(frame)) {
                if (!rise(frame)) return false;
                continue;
            }
            leave();
            if (!frames_.empty()) pass_over(frames_.back(), take_back(frames_.back()));
            continue;
        }
        const int32_t item = next_candidate(frame);
        if (!twin_failed(frame, item)) {
            frame.item = item;
            frame.parts = parts_.size();
            frame.trail = changes_;
            if (place(item)) {
                next_ = split({frame.part.begin, frame.part.end, static_cast<int32_t>(frames_.size()) - 1, frame.part.next}, cut_);
                return true;
            }
            take_back(frame);
        }
        pass_over(frame, item);
    }
    ended_ = Found::kNone;
    return false;
}

bool Exact::count_node() {
    if (nodes_ >= course_.nodes) {
        ended_ = Found::kLimit;
    } else if (++nodes_ % kNodesPerLook == 0 && stop_->now()) {
        ended_ = Found::kStopped;
    } else {
        return true;
    }
    return false;
}

void Exact::begin(const Target& target, const Course& course) {
    target_ = target.end;
    course_ = course;
    nodes_ = dead_ends_ = raised_ = 0;
    placed_ = most_placed_ = 0;
    changes_ = 0;
    frames_.clear();
    parts_.clear();
    candidates_.clear();
    offsets_.assign(count_, 0);
    floor_.resize(count_);
    end_.resize(count_);
    lower_end_.resize(count_);
    load_.assign(sections_, 0);
    crossing_.assign(sections_, 0);
    witness_.assign(sections_, 0);
    failures_.assign(sections_, 0);
    for (int32_t i = 0; i < count_; ++i) {
        const Item& item = items_[i];
        floor_[i] = next_free(i, 0);
        end_[i] = floor_[i] + item.size;
        lower_end_[i] = item.padding < target.padding ? 1 : 0;
        for (int32_t s = item.first; s < item.last; ++s) {
            load_[s] += item.size;
            witness_[s] = i;
            if (s > item.first) ++crossing_[s];
        }
    }
    low_ = floor_;
}

// Whether nothing is known against the target before anything is placed.
bool Exact::root_fits() {
    for (int32_t i = 0; i < count_; ++i) {
        if (too_high(i, low_[i])) return false;
    }
    return fits(0, sections_);
}

Found Exact::search(const Target& target, const Course& course, const Stop& stop) {
    begin(target, course);
    if (course.rise == 0 && !root_fits()) return Found::kNone;
    next_ = split({0, count_, -1, -1}, true);
    return run(stop);
}

Found Exact::resume(int64_t nodes, const Stop& stop) {
    course_.nodes = nodes_ + nodes;
    return run(stop);
}

Found Exact::run(const Stop& stop) {
    stop_ = &stop;
    while (next_ >= 0) {
        if (!count_node()) return ended_;
        enter(parts_[next_]);
        if (!advance()) return ended_;
    }
    return Found::kPlacement;
}

}  // namespace ost::plan
