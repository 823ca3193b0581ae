// Depth-first search over canonical placements below a target, with obstacles.
//
// A placement is canonical when no item can move lower while the others stay. Placed in ascending order of offset, each item of such a placement lies at
// the lowest offset that what was placed before it and the obstacles allow (its floor), so the search only ever asks which item comes next. Three facts
// prune it:
//   - order: an item passed over for one that lies higher (or as high and later in the order) must rest on an item that is not placed yet, which
//     raises its lowest offset; raised offsets persist below the node (`lift`);
//   - load: in every section the lowest offset of the items left there plus their sizes plus the obstacles above must stay below the target;
//   - dominance: no item lies at or above the lowest possible end of another one that is left.
// Stretches of time that no item left crosses are searched one after another. There is no recursion, and work is counted in nodes, so that a run with a
// limit on nodes is reproducible.
//
// M. D. Moffitt, "MiniMalloc", ASPLOS 2023, describes canonical placements, section floors and dominance; passing over by lifting is ours, and so is the
// dive whose target rises.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "conflicts.h"
#include "stop.h"

namespace ost::plan {

enum class Found { kPlacement, kNone, kLimit, kStopped };

// Where items may end: at `end` units or below; those with less padding than `padding` bytes one unit below that.
struct Target {
    int64_t end;
    int64_t padding = 0;

    // All placements of at most `bytes`, and no others.
    static Target of(const Normal& problem, int64_t bytes);
};

// How a search goes: items of lower `rank` first at equal offsets, at most `nodes` nodes. With a positive `rise` the target goes up by it (and faster where
// that does not help) after every `patience` dead ends, and the search goes on where it stands; it ends where the target would pass `ceiling`. Quick and
// good, but it never proves that there is no placement.
struct Course {
    const std::vector<int32_t>* rank;
    int64_t nodes;
    int64_t rise = 0;
    int64_t patience = 0;
    int64_t ceiling = 0;
};

class Exact {
  public:
    explicit Exact(const Conflicts& conflicts);

    // On kPlacement `offsets()` holds one offset an item, in units.
    Found search(const Target& target, const Course& course, const Stop& stop);
    // Goes on with a search that ended with kLimit or kStopped, for so many nodes more.
    Found resume(int64_t nodes, const Stop& stop);

    const std::vector<int64_t>& offsets() const { return offsets_; }
    // Of the last search, since it began.
    int64_t nodes() const { return nodes_; }
    // Section -> how often what was left in it could not be placed any more.
    const std::vector<int64_t>& failures() const { return failures_; }

  private:
    // Items of a stretch of time, to be placed after those of other stretches: those left of [begin, end). If they cannot be placed, the choice that frame
    // `owner` made is wrong.
    struct Part {
        int32_t begin;
        int32_t end;
        int32_t owner;
        int32_t next;  // the part to be placed after it; -1: none
    };
    // A node: a part, and the choice of what is placed first in it.
    struct Frame {
        Part part;
        size_t candidates;  // its own begin here and end with the stack
        size_t tried;
        size_t parts;       // size of the stack of parts before the choice
        size_t outer;       // size of the trail at the node, and before the choice
        size_t trail;
        int32_t item;       // chosen; -1: none
    };
    struct Change {
        int32_t item;
        int64_t floor;  // before
        int64_t low;
    };

    Found run(const Stop& stop);
    void begin(const Target& target, const Course& course);
    bool root_fits();
    bool count_node();
    void enter(const Part& part);
    void gather(Frame& frame);
    int32_t next_candidate(Frame& frame);
    bool advance();
    void pass_over(Frame& frame, int32_t item);
    bool rises(const Frame& frame);
    bool rise(Frame& frame);
    void leave();
    bool twin_failed(const Frame& frame, int32_t item) const;
    int32_t split(Part rest, bool cut);

    bool place(int32_t item);
    int32_t take_back(Frame& frame);
    bool lift(int32_t item);
    bool fits(int32_t first, int32_t last);
    bool leaves_room(int32_t item, int32_t section, int64_t room) const;
    bool find_witness(int32_t section, int64_t room);
    int64_t limit(int32_t item) const { return target_ - lower_end_[item]; }
    bool too_high(int32_t item, int64_t offset) const { return offset > limit(item) - size_[item]; }
    int64_t next_free(int32_t item, int64_t offset) const;
    int64_t blocked_above(int32_t section, int64_t offset) const;
    void reserve_changes(size_t count);
    void raise(int32_t item, int64_t floor, int64_t low, int64_t end);
    void undo(size_t mark);

    const Conflicts& conflicts_;
    const std::vector<Item>& items_;
    const int32_t count_;
    std::vector<int64_t> size_;  // of an item; beside the others' numbers it would be far away
    const int32_t sections_;
    const bool has_obstacles_;

    Course course_{};
    const Stop* stop_ = nullptr;
    int64_t target_ = 0;
    int64_t nodes_ = 0;
    int64_t dead_ends_ = 0;  // since the target last rose
    int64_t raised_ = 0;     // times since more was placed than ever before
    int32_t placed_ = 0;
    int32_t most_placed_ = 0;
    int32_t next_ = -1;      // the part to go on with; -1: everything is placed
    bool cut_ = false;       // the item placed last was the only one across some section's begin
    Found ended_ = Found::kNone;

    std::vector<int64_t> offsets_;
    std::vector<int64_t> floor_;     // lowest offset above what is placed; kPlaced for what is
    std::vector<int64_t> low_;       // lowest offset that any solution below this node can give it; kPlaced likewise
    std::vector<int64_t> end_;       // `low_` and the size; kPlaced likewise
    std::vector<int8_t> lower_end_;  // units that an item must end below the target
    std::vector<int64_t> load_;      // section -> units left
    std::vector<int32_t> crossing_;  // section -> items left that live in it and in the one before
    std::vector<int32_t> witness_;   // section -> an item that last proved that its load fits
    std::vector<int64_t> failures_;
    std::vector<Change> trail_;       // the first `changes_` of it
    size_t changes_ = 0;
    std::vector<Frame> frames_;
    std::vector<Part> parts_;
    std::vector<int32_t> candidates_;
};

}  // namespace ost::plan
