// How a job is handed out.
//
// One atomic word holds the number of chunks not yet taken. Taking a chunk is a compare-and-swap from n to n - 1, and
// chunk number = chunks - n is computed after it: from then on the job cannot end before this worker reports back, so
// task, context and chunks are plain fields that nobody writes meanwhile. A worker that wakes late meets 0, or the next
// job's count, and both are right. `finished` counts chunks done by others than the caller, who waits for it to be
// complete before the next job's fields are written. Every pair of conflicting accesses is ordered by one of these two
// words (release on publish and report, acquire on take and on the final wait).
#include "thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace ost {

namespace {

constexpr int kSpins = 2000;                           // about 20 microseconds
constexpr int kCallerSpins = 500;                      // then the caller yields to whom it waits for
constexpr auto kAwake = std::chrono::milliseconds(3);  // idle time after which a worker sleeps
constexpr size_t kLine = 64;

void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// A number for the calling thread; the one that forks keeps it in the child.
const void* this_thread() {
    static thread_local char place;
    return &place;
}

}  // namespace

struct ThreadPool::State {
    alignas(kLine) std::atomic<int64_t> remaining{0};
    alignas(kLine) std::atomic<int64_t> finished{0};
    alignas(kLine) Task task = nullptr;
    const void* context = nullptr;
    int64_t chunks = 0;

    alignas(kLine) std::atomic<int> sleepers{0};
    std::atomic<bool> stop{false};
    std::mutex sleep;
    std::condition_variable wake;

    std::mutex run;
    std::atomic<const void*> holder{nullptr};  // this_thread() of who has `run`
    uint32_t threads = 1;
    std::vector<void*> scratch;  // one a worker, the caller's first
    std::vector<std::thread> workers;

    bool forked = false;  // this process is a child of the one whose workers these were
    State* next = nullptr;
    State* previous = nullptr;
};

namespace {

// All pools of the process, for the fork handlers.
template <class S>
struct Registry {
    static std::mutex& mutex() {
        static std::mutex& m = *new std::mutex;
        return m;
    }
    static S*& first() {
        static S* head = nullptr;
        return head;
    }
    static void before_fork() { mutex().lock(); }
    static void after_fork_parent() { mutex().unlock(); }
    static void after_fork_child() {
        for (S* s = first(); s != nullptr; s = s->next) {
            s->forked = true;
            if (s->holder.load(std::memory_order_relaxed) == this_thread()) continue;
            s->holder.store(nullptr, std::memory_order_relaxed);
            new (&s->run) std::mutex;
        }
        mutex().unlock();
    }
    static void add(S* s) {
        static const int installed = pthread_atfork(before_fork, after_fork_parent, after_fork_child);
        (void)installed;
        const std::lock_guard<std::mutex> guard(mutex());
        s->next = first();
        if (s->next != nullptr) s->next->previous = s;
        first() = s;
    }
    static void remove(S* s) {
        const std::lock_guard<std::mutex> guard(mutex());
        (s->previous != nullptr ? s->previous->next : first()) = s->next;
        if (s->next != nullptr) s->next->previous = s->previous;
    }
};

}  // namespace

// Runs chunks of the current job until none is left to take.
static int64_t take_all(std::atomic<int64_t>& remaining, const ThreadPool::Task& task, const void* const& context,
                        const int64_t& chunks, void* scratch) {
    int64_t done = 0;
    int64_t left = remaining.load(std::memory_order_acquire);
    while (left > 0) {
        if (!remaining.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
            continue;
        }
        task(context, chunks - left, scratch);
        ++done;
        left = remaining.load(std::memory_order_acquire);
    }
    return done;
}

void ThreadPool::work(State& s, void* scratch) {
    int spins = 0;
    std::chrono::steady_clock::time_point idle_since;
    while (true) {
        if (s.remaining.load(std::memory_order_relaxed) > 0) {
            const int64_t done = take_all(s.remaining, s.task, s.context, s.chunks, scratch);
            if (done > 0) s.finished.fetch_add(done, std::memory_order_release);
            spins = 0;
        } else if (s.stop.load(std::memory_order_acquire)) {
            return;
        } else if (++spins < kSpins) {
            if (spins == 1) idle_since = std::chrono::steady_clock::now();
            relax();
        } else if (std::chrono::steady_clock::now() - idle_since < kAwake) {
            sched_yield();
        } else {
            // The publisher stores `remaining` and then reads `sleepers`; this stores `sleepers` and then reads
            // `remaining`. Sequential consistency lets at least one of the two see the other.
            std::unique_lock<std::mutex> guard(s.sleep);
            s.sleepers.fetch_add(1);
            s.wake.wait(guard, [&s] { return s.remaining.load() > 0 || s.stop.load(); });
            s.sleepers.fetch_sub(1);
            spins = 0;
        }
    }
}

// Starts the missing workers. With fewer threads than asked for the pool still works, the caller does the rest.
void ThreadPool::start(State& s) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals belong to the program's own threads
    try {
        while (s.workers.size() + 1 < s.threads) {
            void* scratch = s.scratch[s.workers.size() + 1];
            s.workers.emplace_back([&s, scratch] { work(s, scratch); });
        }
    } catch (...) {
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ThreadPool::ThreadPool(uint32_t threads) : state_(std::make_unique<State>()) {
    State& s = *state_;
    s.threads = threads == 0 ? 1 : threads;
    s.workers.reserve(s.threads);
    s.scratch.reserve(s.threads);
    try {
        for (uint32_t i = 0; i < s.threads; ++i) {
            void* scratch = std::aligned_alloc(4096, kWorkerScratchBytes);
            if (scratch == nullptr) throw std::bad_alloc();
            s.scratch.push_back(scratch);
        }
    } catch (...) {
        for (void* scratch : s.scratch) std::free(scratch);
        throw;
    }
    Registry<State>::add(&s);
    start(s);
}

ThreadPool::~ThreadPool() {
    State& s = *state_;
    Registry<State>::remove(&s);
    if (s.forked) {
        // The threads are not ours to join, and what they slept on may be in any state: leave both alone.
        new std::vector<std::thread>(std::move(s.workers));
        (void)state_.release();
        return;
    }
    {
        const std::lock_guard<std::mutex> guard(s.sleep);
        s.stop.store(true);
    }
    s.wake.notify_all();
    for (std::thread& worker : s.workers) worker.join();
    for (void* scratch : s.scratch) std::free(scratch);
}

uint32_t ThreadPool::threads() const { return state_->threads; }
void ThreadPool::lock() {
    state_->run.lock();
    state_->holder.store(this_thread(), std::memory_order_relaxed);
}
void ThreadPool::unlock() {
    state_->holder.store(nullptr, std::memory_order_relaxed);
    state_->run.unlock();
}
bool ThreadPool::held_here() const { return state_->holder.load(std::memory_order_relaxed) == this_thread(); }

void ThreadPool::run(int64_t chunks, Task task, const void* context) {
    State& s = *state_;
    if (s.forked) {
        auto* gone = new (std::nothrow) std::vector<std::thread>(std::move(s.workers));
        (void)gone;  // kept for ever: their destructors would end the program
        s.workers.clear();
        new (&s.sleep) std::mutex;
        new (&s.wake) std::condition_variable;
        s.remaining.store(0);
        s.sleepers.store(0);
        s.forked = false;
        start(s);
    }
    if (chunks <= 1 || s.workers.empty()) {
        for (int64_t chunk = 0; chunk < chunks; ++chunk) task(context, chunk, s.scratch[0]);
        return;
    }
    s.task = task;
    s.context = context;
    s.chunks = chunks;
    s.finished.store(0, std::memory_order_relaxed);
    s.remaining.store(chunks);
    if (s.sleepers.load() > 0) {
        {
            const std::lock_guard<std::mutex> guard(s.sleep);
        }
        s.wake.notify_all();
    }
    const int64_t done = take_all(s.remaining, s.task, s.context, s.chunks, s.scratch[0]);
    for (int spins = 0; s.finished.load(std::memory_order_acquire) < chunks - done; ++spins) {
        if (spins < kCallerSpins) {
            relax();
        } else {
            sched_yield();
        }
    }
}

}  // namespace ost
