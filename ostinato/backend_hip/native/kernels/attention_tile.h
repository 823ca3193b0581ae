// The inner part of every attention kernel: a tile of query rows against a run of keys, by online softmax.
//
// A query row is one (token, head) pair; the rows of a tile share one KV head, so a key or a value that was loaded once
// serves all of them. Keys are walked in chunks of a fixed width, chunks in segments of kSegmentKeys, both counted from
// key 0. A segment starts with an empty softmax state, and segments are folded in ascending order: a segment may be
// computed by any worker, and a long context that is shared out over workers gives the same bits as one worker.
// Dot products run over the head width, weighted sums over the keys, in fixed blocks (multiply.h): a row's result
// depends on its query and on the keys it sees, and not on the rows beside it. Keys that a row does not see do not enter
// its result, not even times zero; segments and chunks that no row of the tile sees are left out.
#pragma once

#include "simd.h"
#include "thread_pool.h"

namespace ost::OST_UNIT {

inline constexpr int64_t kSegmentKeys = 512;
inline constexpr int64_t kMaximumChunk = 64;
inline constexpr int64_t kMaximumTileRows = 64;
inline constexpr int64_t kMaximumHeadWidth = 1024;

// Keys [first, end) of a sequence.
struct KeyRange {
    int64_t first;
    int64_t end;
};

// Keys [.., end) as a token at `position` sees them through a window of so many keys, itself the last; 0: no window.
OST_INLINE KeyRange keys_of(int64_t position, int64_t end, int64_t window) {
    const int64_t first = window > 0 && position >= window ? position - window + 1 : 0;
    return first < end ? KeyRange{first, end} : KeyRange{0, 0};
}

// What makes a score of a dot product: times scale, then soft_cap * tanh(score / soft_cap) unless soft_cap is 0.
struct Scoring {
    float scale;  // of either sign
    float soft_cap;
};

// Keys and values of one KV head, dense (table is null) or in blocks. Steps are in bytes.
struct KeyRows {
    const char* keys;
    const char* values;
    int64_t key_step;
    int64_t value_step;
    const int32_t* table;  // physical block of each logical block; a key that is seen lies in one of `blocks`
    int64_t blocks;
    int64_t block_keys;
    int64_t block_step;
    int64_t dtype;
};

// What the head width alone decides.
struct TileShape {
    int64_t width;   // D
    int64_t stride;  // D rounded up to whole vectors
    int64_t chunk;   // keys of a chunk
    int64_t rows;    // query rows that fit the scratch
};
TileShape tile_shape(int64_t width);

// One tile in a worker's scratch. Arrays of rows are padded to whole vectors.
struct Tile {
    TileShape shape;
    int64_t rows;    // query rows in use
    Scoring scoring;
    bool sums_only;  // no weighted sums: of the segments only maximum and sum are wanted
    float* keys;     // [D][chunk], transposed
    float* values;   // [chunk][stride]
    float* query;    // [rows][stride]
    float* weight;   // [rows][chunk]: scores, then softmax weights
    float* output;   // [rows][stride]: weighted sum of the current segment, not yet divided
    float* total;    // [rows][stride]: of the segments folded so far
    float* sums;     // [rows][VW]: partial sums of the weights
    float* maximum;  // [rows]: largest scaled score of the segment so far
    float* rescale;  // [rows]: what a larger maximum makes of the earlier sums
    float* sum;      // [rows]
    float* folded_maximum;
    float* folded_sum;
    int32_t* first;  // [rows]: row r sees keys [first, end) of the sequence, at least one
    int32_t* end;
    int32_t* low;  // [rows]: of the current chunk it sees keys [low, high)
    int32_t* high;
};
Tile make_tile(const TileShape& shape, const Scoring& scoring, void* scratch);

// Puts `count` queries of `dtype`, `step` elements apart, behind those already there; each sees `keys`, at least one.
void add_queries(Tile& tile, int64_t dtype, const void* queries, int64_t count, int64_t step, KeyRange keys);

// Segment state (maximum, sum, output) of all rows over keys [begin, end): begin a multiple of kSegmentKeys, end - begin
// at most that.
void attend_segment(Tile& tile, const KeyRows& rows, int64_t begin, int64_t end);

// Folds one later segment of one row into what came before it.
void fold_row(float& maximum, float& sum, float* total, float later_maximum, float later_sum, const float* later,
              int64_t stride);

// All segments that a row of the tile sees, in turn, folded into folded_maximum, folded_sum and total.
void attend(Tile& tile, const KeyRows& rows);

// Writes total / sum as dtype; zeros when no key was seen.
void write_row(int64_t dtype, void* y, const float* total, float sum, int64_t width);

}  // namespace ost::OST_UNIT
