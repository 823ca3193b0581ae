// Runs kernels as C++: one fibre a thread, one block after another, on one core. Included before everything else in
// every module that emulator.py compiles, so that a module carries its own scheduler; nothing of this is in a wheel.
//
// What a GPU leaves open is decided by a seed: the order of blocks, and at every moment which of the threads that can
// go on does. A kernel whose result depends on it has a race. What a GPU leaves undefined is refused: a barrier or a
// shuffle that not all threads of the block or wave reach, at the same place and as often as each other. Shared memory
// is filled with NaN patterns when a block starts, and lies between red zones under -fsanitize=address.
//
// A launch that begins early runs some of its blocks up to their wait before the work in front of it has run at all:
// what they read too soon is not yet there, and what they write too soon is written over. A thread of it that ends
// without having waited is refused.
#pragma once

#include <math.h>

#include <mutex>

#include "blocks.h"

#define OSTINATO_ENTRY extern "C" __attribute__((visibility("default")))

namespace emulator {

static std::mutex one_launch;  // one runs at a time, though several may have begun
static std::vector<std::unique_ptr<Block>> spare;  // with the stacks of their threads
constexpr size_t kMostAhead = 3;                   // blocks of a launch that begins early

static std::unique_ptr<Block> take_block() {
    if (spare.empty()) return std::make_unique<Block>();
    std::unique_ptr<Block> taken = std::move(spare.back());
    spare.pop_back();
    return taken;
}

static void give_block(std::unique_ptr<Block> used) {
    used->kept.clear();
    spare.push_back(std::move(used));
}

// Lets the threads of a block run as far as they come; false where it waits for earlier work.
static bool run_on(Block& one) {
    block = &one;
    Launch& launch = *one.launch;
    go_on(one.scheduler);
    if (!launch.failed && one.returned < launch.threads) {
        const auto waits = [](const Thread& thread) { return thread.state == State::AT_WAIT; };
        if (std::any_of(one.threads, one.threads + launch.threads, waits)) return false;
        fail_stuck();
    }
    if (launch.failed) {
        for (Thread& thread : one.threads) thread.begun = false;  // those that wait are abandoned
    }
    return true;
}

static bool start_block(Block& one, Launch& launch, size_t number) {
    for (const SharedArray* array : SharedArray::all()) array->poison();
    block = &one;
    one.launch = &launch;
    one.index[0] = static_cast<unsigned>(number % launch.blocks[0]);
    one.index[1] = static_cast<unsigned>(number / launch.blocks[0] % launch.blocks[1]);
    one.index[2] = static_cast<unsigned>(number / launch.blocks[0] / launch.blocks[1]);
    one.at_barrier = one.returned = 0;
    one.allowed = false;
    memset(one.at_shuffle, 0, sizeof one.at_shuffle);
    one.ready.clear();
    for (int i = 0; i < launch.threads; ++i) prepare(i);
    return run_on(one);
}

static void keep_shared(Block& one) {
    for (SharedArray* array : SharedArray::all()) {
        const auto* const bytes = static_cast<const char*>(array->memory);
        one.kept.emplace_back(array, std::vector<char>(bytes, bytes + array->bytes));
    }
}

// Goes on with a block that waited, now that earlier work is over.
static void resume_block(Block& one) {
    for (const SharedArray* array : SharedArray::all()) array->poison();
    for (const auto& entry : one.kept) memcpy(entry.first->memory, entry.second.data(), entry.second.size());
    for (int i = 0; i < one.launch->threads; ++i) {
        if (one.threads[i].state == State::AT_WAIT) {
            one.threads[i].state = State::READY;
            one.ready.push_back(i);
        }
    }
    run_on(one);
}

static void shuffle_order(Launch& launch) {
    for (size_t i = 0; i < launch.order.size(); ++i) std::swap(launch.order[i], launch.order[launch.below(i + 1)]);
}

static void begin_blocks(Launch& launch) {
    launch.early = true;
    launch.open = false;
    for (size_t left = 1 + launch.below(kMostAhead); left != 0 && !launch.order.empty() && !launch.failed; --left) {
        std::unique_ptr<Block> one = take_block();
        const size_t number = launch.order.back();
        launch.order.pop_back();
        if (start_block(*one, launch, number)) {
            give_block(std::move(one));  // it failed: nothing ends before it has waited
            continue;
        }
        keep_shared(*one);
        launch.allowed = launch.allowed && one->allowed;
        launch.waiting.emplace_back(number, std::move(one));
    }
    launch.open = true;
    for (const auto& entry : launch.waiting) launch.order.push_back(entry.first);
    shuffle_order(launch);
}

static void run_blocks(Launch& launch) {
    std::unique_ptr<Block> mine = take_block();
    while (!launch.order.empty() && !launch.failed) {
        const size_t number = launch.order.back();
        launch.order.pop_back();
        const auto begun = std::find_if(launch.waiting.begin(), launch.waiting.end(),
                                        [number](const auto& entry) { return entry.first == number; });
        if (begun == launch.waiting.end()) {
            start_block(*mine, launch, number);
        } else {
            resume_block(*begun->second);
            give_block(std::move(begun->second));
            launch.waiting.erase(begun);
        }
    }
    give_block(std::move(mine));
    if (!launch.failed && launch.shared > kMostShared) {
        snprintf(launch.message, sizeof launch.message, "a block has at most %zu bytes of shared memory, found %zu",
                 kMostShared, launch.shared);
        launch.failed = true;
    }
}

static void abandon(Launch& launch) {
    for (auto& entry : launch.waiting) {
        for (Thread& thread : entry.second->threads) thread.begun = false;
        give_block(std::move(entry.second));
    }
    launch.waiting.clear();
}

template <class... Parameters, size_t... I>
void call(void (*kernel)(Parameters...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<Parameters*>(arguments[I])...);
}
template <class... Parameters>
void apply(void (*kernel)(Parameters...), void** arguments) {
    call(kernel, arguments, std::index_sequence_for<Parameters...>());
}
template <class... Parameters>
size_t parameter_sizes(void (*)(Parameters...), size_t* sizes) {  // how many; their sizes where wanted
    const size_t each[] = {sizeof(Parameters)...};
    if (sizes != nullptr) memcpy(sizes, each, sizeof each);
    return sizeof...(Parameters);
}

}  // namespace emulator

// A launch of a kernel of this module over a grid; `arguments` are addresses of its parameters in order, as for a launch
// on a GPU, and stay where they are until it is over. `early`: some blocks run up to their wait now. Whoever began it
// finishes it, or abandons it. Null with the reason in `message` for a shape that no device has.
OSTINATO_ENTRY void* ostinato_emulator_begin(void (*kernel)(void**), const unsigned* grid, const unsigned* threads,
                                             void** arguments, unsigned long long seed, int early, char* message,
                                             size_t message_size) {
    const std::lock_guard<std::mutex> lock(emulator::one_launch);
    const size_t count = size_t{threads[0]} * threads[1] * threads[2];
    const size_t blocks = size_t{grid[0]} * grid[1] * grid[2];
    if (threads[1] != 1 || threads[2] != 1 || count == 0 || count > emulator::kMostThreads || count % 64 != 0) {
        const char* const rule = "a block has one dimension and a multiple of 64 threads, at most 1024";
        snprintf(message, message_size, "%s; found %u,%u,%u", rule, threads[0], threads[1], threads[2]);
        return nullptr;
    }
    if (blocks == 0) {
        snprintf(message, message_size, "a grid has at least one block; found %u,%u,%u", grid[0], grid[1], grid[2]);
        return nullptr;
    }
    static unsigned long long launches = 0;
    auto* const launch = new emulator::Launch;
    launch->number = ++launches;
    launch->kernel = kernel;
    launch->arguments = arguments;
    launch->threads = static_cast<int>(count);
    launch->random = seed * 2 + 1;
    for (int axis = 0; axis < 3; ++axis) launch->blocks[axis] = grid[axis];
    for (size_t i = 0; i < blocks; ++i) launch->order.push_back(i);
    emulator::shuffle_order(*launch);
    if (early != 0) emulator::begin_blocks(*launch);
    return launch;
}

// Whether the next kernel may begin too, as far as the blocks that run go.
OSTINATO_ENTRY int ostinato_emulator_allows(const void* launch) {
    return static_cast<const emulator::Launch*>(launch)->allowed ? 1 : 0;
}

// Runs what is left of it. Returns 0, or 1 with the reason in `message`.
OSTINATO_ENTRY int ostinato_emulator_finish(void* begun, char* message, size_t message_size) {
    const std::lock_guard<std::mutex> lock(emulator::one_launch);
    const std::unique_ptr<emulator::Launch> launch(static_cast<emulator::Launch*>(begun));
    emulator::run_blocks(*launch);
    emulator::abandon(*launch);
    snprintf(message, message_size, "%s", launch->message);
    return launch->failed ? 1 : 0;
}

OSTINATO_ENTRY void ostinato_emulator_abandon(void* begun) {
    const std::lock_guard<std::mutex> lock(emulator::one_launch);
    const std::unique_ptr<emulator::Launch> launch(static_cast<emulator::Launch*>(begun));
    emulator::abandon(*launch);
}

// What device.h takes from a compiler.

#define SHARED(type, name, count)                                      \
    static emulator::SharedArray name##_array(sizeof(type) * (count)); \
    type* const name = static_cast<type*>(name##_array.reach())
// An entry point comes with the sizes of its parameters, which a device that keeps a launch for later has to copy.
#define KERNEL(name, threads, parameters, call)                                                \
    static void name##_thread parameters { call; }                                             \
    OSTINATO_ENTRY void name(void** arguments) { emulator::apply(name##_thread, arguments); }  \
    OSTINATO_ENTRY size_t name##_parameters(size_t* sizes) { /* emulator/device needs it */    \
        return emulator::parameter_sizes(name##_thread, sizes);                                \
    }

inline unsigned thread_index() { return static_cast<unsigned>(emulator::block->current->number); }
inline unsigned thread_count() { return static_cast<unsigned>(emulator::block->launch->threads); }
inline unsigned block_index() { return emulator::block->index[0]; }
inline unsigned block_index_y() { return emulator::block->index[1]; }
inline unsigned block_count() { return emulator::block->launch->blocks[0]; }
inline unsigned block_count_y() { return emulator::block->launch->blocks[1]; }

inline void block_barrier(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    emulator::barrier(file, line);
}
inline unsigned exchange(unsigned value, int from, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return emulator::shuffle(value, from, file, line);
}

inline void wave_barrier(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    emulator::shuffle(0, 0, file, line);
}

inline unsigned atomic_compare_exchange(unsigned* at, unsigned expected, unsigned wanted) {
    const unsigned found = *at;
    if (found == expected) *at = wanted;
    return found;
}
inline int atomic_add(int* at, int value) { return std::exchange(*at, *at + value); }
inline unsigned atomic_add(unsigned* at, unsigned value) { return std::exchange(*at, *at + value); }
inline void device_fence() {}
inline int atomic_exchange(int* at, int value) { return std::exchange(*at, value); }
inline void wait_for_earlier() { emulator::wait_for_opening(); }
inline void allow_later() { emulator::block->allowed = true; }

template <class To, class From>
inline To same_bits(From from) {
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline unsigned bits_of(float x) { return same_bits<unsigned>(x); }
inline float float_of(unsigned bits) { return same_bits<float>(bits); }
inline unsigned long long bits_of(double x) { return same_bits<unsigned long long>(x); }
inline double double_of(unsigned long long bits) { return same_bits<double>(bits); }
