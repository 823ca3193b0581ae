// Which lives overlap, without a list of pairs: who begins when, and who is alive at some checkpoints in between.
//
// Pairs grow with the square of what is alive at a time (100,000 buffers of a training step: billions), this with the number of lives alone, and a look-up
// is hardly slower.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "conflicts.h"

namespace ost::plan {

class Timeline {
  public:
    // Lives have `first` and `last`, sections [first, last), and come in ascending order of `first`.
    template <typename Life>
    Timeline(const std::vector<Life>& lives, int32_t sections)
        : last_(lives.size()), begun_(sections + 1, 0), every_(spacing(lives)), carried_(sections / every_ + 1, [&](auto put) {
              for (size_t i = 0; i < lives.size(); ++i) {
                  for (int64_t c = lives[i].first / every_ + 1; c * every_ < lives[i].last; ++c) put(c, static_cast<int32_t>(i));
              }
          }) {
        for (size_t i = 0; i < lives.size(); ++i) {
            last_[i] = lives[i].last;
            ++begun_[lives[i].first + 1];
        }
        for (int32_t s = 0; s < sections; ++s) begun_[s + 1] += begun_[s];
    }

    // Calls `visit` with the index of every life that shares a section with [first, last), once each.
    template <typename Visit>
    void each(int32_t first, int32_t last, Visit visit) const {
        const int32_t checkpoint = first / every_;
        for (const int32_t i : carried_[checkpoint]) {
            if (last_[i] > first) visit(i);
        }
        for (int32_t i = begun_[checkpoint * every_]; i < begun_[first]; ++i) {
            if (last_[i] > first) visit(i);
        }
        for (int32_t i = begun_[first]; i < begun_[last]; ++i) visit(i);
    }

  private:
    static constexpr int64_t kCarried = 16;  // entries of all checkpoints for each life, at most

    template <typename Life>
    static int32_t spacing(const std::vector<Life>& lives) {
        int64_t sections = 0;
        for (const Life& life : lives) sections += life.last - life.first;
        return static_cast<int32_t>(1 + sections / (kCarried * std::max<int64_t>(1, static_cast<int64_t>(lives.size()))));
    }

    std::vector<int32_t> last_;
    std::vector<int32_t> begun_;  // section -> lives that begin before it
    int32_t every_;               // sections from one checkpoint to the next
    Rows<int32_t> carried_;       // checkpoint -> lives that began before it and are alive
};

}  // namespace ost::plan
