// Worker threads that hand out numbered chunks of one job at a time.
//
// The caller works too, so one thread means no hand-over at all. Workers that find nothing spin for some microseconds,
// then yield, then sleep: a static spinning barrier is more than twice as slow as this beside a busy neighbour.
// A pool takes one job at a time: callers hold lock() around a sequence of them. Nothing here allocates or throws
// once the pool exists, except in a forked child, whose first job starts new workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace ost {

// Scratch every worker owns for staging one tile (a decoded weight panel, a block of scores): part of the device, like
// a GPU's shared memory, so that a plan does not depend on the number of threads.
inline constexpr size_t kWorkerScratchBytes = 512 * 1024;

class ThreadPool {
  public:
    // A unit of work: chunk number, the worker that runs it, and that worker's scratch (64-byte aligned).
    using Task = void (*)(const void* context, int64_t chunk, void* scratch);

    explicit ThreadPool(uint32_t threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    uint32_t threads() const;

    // One table runs on a pool at a time. The lock is made anew in a forked child, unless its holder is the thread that
    // forked, the only one that exists there.
    void lock();
    void unlock();
    bool held_here() const;  // by the calling thread, who would wait for itself

    // Runs task(context, c, scratch) for every c in [0, chunks), in any order, on the caller and the workers; returns
    // when all are done. Which worker runs a chunk must not matter to its result. One chunk runs on the caller alone.
    void run(int64_t chunks, Task task, const void* context);

    // The same for a callable; F is called as f(int64_t chunk, void* scratch) const.
    template <class F>
    __attribute__((always_inline)) void parallel(int64_t chunks, const F& f) {
        run(
            chunks,
            [](const void* context, int64_t chunk, void* scratch) {
                (*static_cast<const F*>(context))(chunk, scratch);
            },
            &f);
    }

  private:
    struct State;
    static void start(State& state);
    static void work(State& state, void* scratch);
    std::unique_ptr<State> state_;
};

}  // namespace ost
