// Runs kernels as C++: one fibre a thread, one block after another, on one core. Included before everything else in
// every module that emulator.py compiles, so that a module carries its own scheduler; nothing of this is in a wheel.
//
// What a GPU leaves open is decided by a seed: the order of blocks, and at every moment which of the threads that can
// go on does. A kernel whose result depends on it has a race. What a GPU leaves undefined is refused: a barrier or a
// shuffle that not all threads of the block or wave reach, at the same place and as often as each other. Shared memory
// is filled with NaN patterns when a block starts, and lies between red zones under -fsanitize=address.
#pragma once

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <mutex>
#include <utility>
#include <vector>

#include "fibre.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define OSTINATO_ENTRY extern "C" __attribute__((visibility("default")))

namespace emulator {

enum class State { READY, AT_BARRIER, AT_SHUFFLE, RETURNED };

// Where a thread waits for others, and for which time.
struct Site {
    const char* file;
    int line;
    unsigned long long turn;
    bool operator==(const Site& o) const {
        return line == o.line && turn == o.turn && (file == o.file || strcmp(file, o.file) == 0);
    }
};

struct Thread {
    Context context;
    int number;
    State state;
    Site site;
    unsigned long long barriers, turns;  // barriers so far; and shuffles too, in which waves may differ
    unsigned value;            // given to a shuffle, then what came back
    int source;                // lane that it is wanted from
    char* stack = nullptr;
    size_t stack_size = 0;
    bool begun = false;          // the fibre exists and waits for the next block
    void* fake_stack = nullptr;  // of the address sanitizer
};

constexpr size_t kStack = 128 * 1024;
constexpr int kMostThreads = 1024;
constexpr size_t kMostShared = 48 * 1024;  // what every device has without being asked

struct Block {
    Thread threads[kMostThreads];
    int count, at_barrier, returned, at_shuffle[kMostThreads / WAVE];
    unsigned index[3], blocks[3];
    void (*kernel)(void**);
    void** arguments;
    Thread* current;
    std::vector<int> ready;  // threads that can go on
    Thread scheduler;        // what runs when none can
    Thread* left;            // whom the last switch left
    unsigned long long random, launch;
    size_t shared;  // bytes of the arrays that this launch has reached
    char* message;
    size_t message_size;
    bool failed;

    size_t below(size_t n) {  // xorshift64*
        random ^= random >> 12, random ^= random << 25, random ^= random >> 27;
        return static_cast<size_t>((random * 0x2545f4914f6cdd1dull >> 32) * n >> 32);
    }
};

static Block block;
static std::mutex one_launch;

// Arrays of a block; each is known once a thread has reached it.
struct SharedArray {
    void* memory = nullptr;
    size_t bytes;
    unsigned long long launch = 0;  // the last one that reached it
    static std::vector<SharedArray*>& all() {
        static std::vector<SharedArray*> arrays;
        return arrays;
    }
    explicit SharedArray(size_t size) : bytes(size) {
        if (posix_memalign(&memory, 16, size) != 0) abort();
        all().push_back(this);
        poison();
    }
    void poison() const { memset(memory, 0xff, bytes); }
    void* reach() {
        if (launch != block.launch) block.shared += bytes;
        launch = block.launch;
        return memory;
    }
};

// From thread to thread, and to the scheduler when none can go on. The sanitizer is told of every stack.

static void arrive(Thread& thread) {
#if defined(__SANITIZE_ADDRESS__)
    const void* stack;
    size_t size;
    __sanitizer_finish_switch_fiber(thread.fake_stack, &stack, &size);
    block.left->stack = static_cast<char*>(const_cast<void*>(stack));
    block.left->stack_size = size;
#else
    (void)thread;
#endif
}

static void go_on(Thread& from) {
    Thread* next = &block.scheduler;
    if (!block.failed && !block.ready.empty()) {
        std::swap(block.ready[block.below(block.ready.size())], block.ready.back());
        next = &block.threads[block.ready.back()];
        block.ready.pop_back();
        block.current = next;
    }
    if (next == &from) return;
    block.left = &from;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&from.fake_stack, next->stack, next->stack_size);
#endif
    change(from.context, next->context);
    arrive(from);
}

static void fibre() {
    arrive(*block.current);
    for (;;) {
        block.kernel(block.arguments);
        block.current->state = State::RETURNED;
        ++block.returned;
        go_on(*block.current);
    }
}

static void prepare(int number) {
    Thread& thread = block.threads[number];
    if (thread.stack == nullptr) {
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        thread.stack = static_cast<char*>(mmap(nullptr, kStack, PROT_READ | PROT_WRITE, flags, -1, 0));
        // not all at one offset: the frames of all threads would fall into the same few cache sets
        thread.stack_size = kStack - static_cast<size_t>(number % 64) * 320;
    }
    if (!thread.begun) make(thread.context, thread.stack, thread.stack_size, fibre);
    thread.begun = true;
    thread.number = number;
    thread.state = State::READY;
    thread.barriers = thread.turns = 0;
    block.ready.push_back(number);
}

// Meeting points.

static void describe(const Thread& thread, char* text, size_t size) {
    if (thread.state == State::RETURNED) {
        snprintf(text, size, "thread %d has returned", thread.number);
    } else {
        snprintf(text, size, "thread %d waits at %s %s:%d (turn %llu)", thread.number,
                 thread.state == State::AT_BARRIER ? "barrier" : "shuffle", thread.site.file, thread.site.line,
                 thread.site.turn);
    }
}

static void fail_apart(const Thread& one, const Thread& other) {
    char here[200], there[200];
    describe(one, here, sizeof here);
    describe(other, there, sizeof there);
    const char* const what = one.state == State::AT_BARRIER ? "barrier" : "shuffle";
    snprintf(block.message, block.message_size, "divergent %s in block [%u,%u,%u]: %s, %s", what, block.index[0],
             block.index[1], block.index[2], here, there);
    block.failed = true;
}

// Threads [first, end) all wait: together, unless they stand at different places.
static bool together(int first, int end) {
    for (int i = first + 1; i < end; ++i) {
        if (block.threads[i].site == block.threads[first].site) continue;
        fail_apart(block.threads[first], block.threads[i]);
        return false;
    }
    return true;
}

static void release(int first, int end) {
    for (int i = first; i < end; ++i) {
        block.threads[i].state = State::READY;
        block.ready.push_back(i);
    }
}

static void wait_at(Thread& thread, State state, const char* file, int line) {
    thread.state = state;
    const unsigned long long turn = thread.turns++;
    thread.site = {file, line, state == State::AT_BARRIER ? thread.barriers++ : turn};
}

static void barrier(const char* file, int line) {
    Thread& thread = *block.current;
    wait_at(thread, State::AT_BARRIER, file, line);
    if (++block.at_barrier == block.count && together(0, block.count)) {
        block.at_barrier = 0;
        release(0, block.count);
    }
    go_on(thread);
}

static unsigned shuffle(unsigned value, int source, const char* file, int line) {
    Thread& thread = *block.current;
    thread.value = value;
    thread.source = source & (WAVE - 1);
    wait_at(thread, State::AT_SHUFFLE, file, line);
    const int wave = thread.number / WAVE, first = wave * WAVE;
    if (++block.at_shuffle[wave] == WAVE && together(first, first + WAVE)) {
        block.at_shuffle[wave] = 0;
        unsigned values[WAVE];
        for (int i = 0; i < WAVE; ++i) values[i] = block.threads[first + i].value;
        for (int i = 0; i < WAVE; ++i) block.threads[first + i].value = values[block.threads[first + i].source];
        release(first, first + WAVE);
    }
    go_on(thread);
    return thread.value;
}

// Nobody can go on and some have not returned: somebody is waited for who stands elsewhere.
static void fail_stuck() {
    int waiting = 0;
    while (block.threads[waiting].state == State::RETURNED) ++waiting;
    const Thread& one = block.threads[waiting];
    const bool wave = one.state == State::AT_SHUFFLE;
    int other = wave ? waiting / WAVE * WAVE : 0;
    while (block.threads[other].state == one.state) ++other;
    fail_apart(one, block.threads[other]);
}

static void run_block() {
    for (const SharedArray* array : SharedArray::all()) array->poison();
    block.at_barrier = block.returned = 0;
    memset(block.at_shuffle, 0, sizeof block.at_shuffle);
    block.ready.clear();
    for (int i = 0; i < block.count; ++i) prepare(i);
    go_on(block.scheduler);
    if (!block.failed && block.returned < block.count) fail_stuck();
    if (block.failed) {
        for (Thread& thread : block.threads) thread.begun = false;  // those that wait are abandoned
    }
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

// Runs a kernel of this module over a grid; `arguments` are addresses of its parameters in order, as for a launch on a
// GPU. Returns 0, or 1 with the reason in `message`. One launch of a module runs at a time.
OSTINATO_ENTRY int ostinato_emulator_launch(void (*kernel)(void**), const unsigned* grid, const unsigned* threads,
                                            void** arguments, unsigned long long seed, char* message,
                                            size_t message_size) {
    using emulator::block;
    const std::lock_guard<std::mutex> lock(emulator::one_launch);
    const size_t count = size_t{threads[0]} * threads[1] * threads[2];
    const size_t blocks = size_t{grid[0]} * grid[1] * grid[2];
    if (threads[1] != 1 || threads[2] != 1 || count == 0 || count > emulator::kMostThreads || count % 64 != 0) {
        const char* const rule = "a block has one dimension and a multiple of 64 threads, at most 1024";
        snprintf(message, message_size, "%s; found %u,%u,%u", rule, threads[0], threads[1], threads[2]);
        return 1;
    }
    if (blocks == 0) {
        snprintf(message, message_size, "a grid has at least one block; found %u,%u,%u", grid[0], grid[1], grid[2]);
        return 1;
    }
    block.count = static_cast<int>(count);
    block.kernel = kernel;
    block.arguments = arguments;
    block.random = seed * 2 + 1;
    block.message = message;
    block.message_size = message_size;
    block.failed = false;
    block.shared = 0;
    ++block.launch;
    std::vector<size_t> order(blocks);
    for (size_t i = 0; i < blocks; ++i) {
        order[i] = i;
        std::swap(order[i], order[block.below(i + 1)]);
    }
    for (int axis = 0; axis < 3; ++axis) block.blocks[axis] = grid[axis];
    for (size_t i = 0; i < blocks && !block.failed; ++i) {
        block.index[0] = static_cast<unsigned>(order[i] % grid[0]);
        block.index[1] = static_cast<unsigned>(order[i] / grid[0] % grid[1]);
        block.index[2] = static_cast<unsigned>(order[i] / grid[0] / grid[1]);
        emulator::run_block();
    }
    if (!block.failed && block.shared > emulator::kMostShared) {
        snprintf(message, message_size, "a block has at most %zu bytes of shared memory, found %zu",
                 emulator::kMostShared, block.shared);
        return 1;
    }
    return block.failed ? 1 : 0;
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

inline unsigned thread_index() { return static_cast<unsigned>(emulator::block.current->number); }
inline unsigned thread_count() { return static_cast<unsigned>(emulator::block.count); }
inline unsigned block_index() { return emulator::block.index[0]; }
inline unsigned block_index_y() { return emulator::block.index[1]; }
inline unsigned block_count() { return emulator::block.blocks[0]; }
inline unsigned block_count_y() { return emulator::block.blocks[1]; }

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
