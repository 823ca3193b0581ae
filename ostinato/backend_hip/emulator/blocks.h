// Blocks of a launch, their threads as fibres, and the places where threads meet. emulator.h says what is emulated.
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "fibre.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulator {

enum class State { READY, AT_BARRIER, AT_SHUFFLE, AT_WAIT, RETURNED };

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
    bool waited;               // for earlier work
    char* stack = nullptr;
    size_t stack_size = 0;
    bool begun = false;          // the fibre exists and waits for the next block
    void* fake_stack = nullptr;  // of the address sanitizer
};

constexpr size_t kStack = 128 * 1024;
constexpr int kMostThreads = 1024;
constexpr size_t kMostShared = 48 * 1024;  // what every device has without being asked

struct SharedArray;
struct Block;

// One launch. What it runs ahead of the launch in front of it are a few blocks, each up to its wait.
struct Launch {
    unsigned long long number;
    void (*kernel)(void**);
    void** arguments;
    int threads;
    unsigned blocks[3];
    std::vector<size_t> order;  // of blocks still to come, the next one last
    std::vector<std::pair<size_t, std::unique_ptr<Block>>> waiting;
    unsigned long long random;
    bool early = false;   // some of its blocks run before earlier work is over
    bool open = true;     // it is over
    bool allowed = true;  // the blocks that wait have let later kernels start
    bool failed = false;
    char message[400] = "";
    size_t shared = 0;  // bytes of the arrays that it has reached
    std::vector<const SharedArray*> reached;

    size_t below(size_t n) {  // xorshift64*
        random ^= random >> 12, random ^= random << 25, random ^= random >> 27;
        return static_cast<size_t>((random * 0x2545f4914f6cdd1dull >> 32) * n >> 32);
    }
};

struct Block {
    Thread threads[kMostThreads];
    int at_barrier, returned, at_shuffle[kMostThreads / WAVE];
    unsigned index[3];
    bool allowed;  // a thread has let later kernels start
    Launch* launch = nullptr;
    Thread* current;
    std::vector<int> ready;  // threads that can go on
    Thread scheduler;        // what runs when none can
    Thread* left;            // whom the last switch left
    std::vector<std::pair<SharedArray*, std::vector<char>>> kept;  // its arrays while others run
};

static Block* block = nullptr;  // the one that runs

// Arrays of a block; each is known once a thread has reached it.
struct SharedArray {
    void* memory = nullptr;
    size_t bytes;
    unsigned long long last = 0;  // launch that reached it
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
        Launch& launch = *block->launch;
        auto& known = launch.reached;
        if (last != launch.number && std::find(known.begin(), known.end(), this) == known.end()) {
            known.push_back(this);
            launch.shared += bytes;
        }
        last = launch.number;
        return memory;
    }
};

// From thread to thread, and to the scheduler when none can go on. The sanitizer is told of every stack.

static void arrive(Thread& thread) {
#if defined(__SANITIZE_ADDRESS__)
    const void* stack;
    size_t size;
    __sanitizer_finish_switch_fiber(thread.fake_stack, &stack, &size);
    block->left->stack = static_cast<char*>(const_cast<void*>(stack));
    block->left->stack_size = size;
#else
    (void)thread;
#endif
}

static void go_on(Thread& from) {
    Thread* next = &block->scheduler;
    if (!block->launch->failed && !block->ready.empty()) {
        std::swap(block->ready[block->launch->below(block->ready.size())], block->ready.back());
        next = &block->threads[block->ready.back()];
        block->ready.pop_back();
        block->current = next;
    }
    if (next == &from) return;
    block->left = &from;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&from.fake_stack, next->stack, next->stack_size);
#endif
    change(from.context, next->context);
    arrive(from);
}

template <class... Values>
void fail(const char* text, Values... values) {
    if (block->launch->failed) return;
    snprintf(block->launch->message, sizeof block->launch->message, text, values...);
    block->launch->failed = true;
}

static void fibre() {
    arrive(*block->current);
    for (;;) {
        Thread& thread = *block->current;
        block->launch->kernel(block->launch->arguments);
        if (block->launch->early && !thread.waited) {
            fail("thread %d of block [%u,%u,%u] ends without waiting for earlier work", thread.number, block->index[0],
                 block->index[1], block->index[2]);
        }
        thread.state = State::RETURNED;
        ++block->returned;
        go_on(thread);
    }
}

static void prepare(int number) {
    Thread& thread = block->threads[number];
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
    thread.waited = false;
    thread.barriers = thread.turns = 0;
    block->ready.push_back(number);
}

// Meeting points.

static void describe(const Thread& thread, char* text, size_t size) {
    if (thread.state == State::RETURNED) {
        snprintf(text, size, "thread %d has returned", thread.number);
    } else if (thread.state == State::AT_WAIT) {
        snprintf(text, size, "thread %d waits for earlier work", thread.number);
    } else {
        snprintf(text, size, "thread %d waits at %s %s:%d (turn %llu)", thread.number,
                 thread.state == State::AT_BARRIER ? "barrier" : "shuffle", thread.site.file, thread.site.line,
                 thread.site.turn);
    }
}

static void fail_apart(const Thread& one, const Thread& other) {
    char here[150], there[150];
    describe(one, here, sizeof here);
    describe(other, there, sizeof there);
    const char* const what = one.state == State::AT_BARRIER ? "barrier" : "shuffle";
    fail("divergent %s in block [%u,%u,%u]: %s, %s", what, block->index[0], block->index[1], block->index[2], here,
         there);
}

// Threads [first, end) all wait: together, unless they stand at different places.
static bool together(int first, int end) {
    for (int i = first + 1; i < end; ++i) {
        if (block->threads[i].site == block->threads[first].site) continue;
        fail_apart(block->threads[first], block->threads[i]);
        return false;
    }
    return true;
}

static void release(int first, int end) {
    for (int i = first; i < end; ++i) {
        block->threads[i].state = State::READY;
        block->ready.push_back(i);
    }
}

static void wait_at(Thread& thread, State state, const char* file, int line) {
    thread.state = state;
    const unsigned long long turn = thread.turns++;
    thread.site = {file, line, state == State::AT_BARRIER ? thread.barriers++ : turn};
}

static void barrier(const char* file, int line) {
    Thread& thread = *block->current;
    wait_at(thread, State::AT_BARRIER, file, line);
    const int count = block->launch->threads;
    if (++block->at_barrier == count && together(0, count)) {
        block->at_barrier = 0;
        release(0, count);
    }
    go_on(thread);
}

static unsigned shuffle(unsigned value, int source, const char* file, int line) {
    Thread& thread = *block->current;
    thread.value = value;
    thread.source = source & (WAVE - 1);
    wait_at(thread, State::AT_SHUFFLE, file, line);
    const int wave = thread.number / WAVE, first = wave * WAVE;
    if (++block->at_shuffle[wave] == WAVE && together(first, first + WAVE)) {
        block->at_shuffle[wave] = 0;
        unsigned values[WAVE];
        for (int i = 0; i < WAVE; ++i) values[i] = block->threads[first + i].value;
        for (int i = 0; i < WAVE; ++i) block->threads[first + i].value = values[block->threads[first + i].source];
        release(first, first + WAVE);
    }
    go_on(thread);
    return thread.value;
}

// A thread that comes here before earlier work is over stays until the launch is opened.
static void wait_for_opening() {
    Thread& thread = *block->current;
    thread.waited = true;
    if (block->launch->open) return;
    thread.state = State::AT_WAIT;
    go_on(thread);
}

// Nobody can go on and some have not returned: somebody is waited for who stands elsewhere.
static void fail_stuck() {
    int waiting = 0;
    while (block->threads[waiting].state == State::RETURNED) ++waiting;
    const Thread& one = block->threads[waiting];
    const bool wave = one.state == State::AT_SHUFFLE;
    int other = wave ? waiting / WAVE * WAVE : 0;
    while (block->threads[other].state == one.state) ++other;
    fail_apart(one, block->threads[other]);
}

}  // namespace emulator
