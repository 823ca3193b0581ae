#include "rounds.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace ost::plan {

namespace {

// All that threads share is behind one mutex; work is done outside of it.
class Round {
  public:
    Round(const Normal& problem, const std::vector<Job>& jobs, const Stop& stop, Knowledge& known)
        : problem_(problem), jobs_(jobs), stop_(stop), known_(known), begin_(known), reports_(jobs.size()), stops_(jobs.size()) {}

    void run(size_t threads) {
        Team team(*this);
        while (team.threads.size() + 1 < std::min(threads, jobs_.size())) team.threads.emplace_back([this] { take_jobs(); });
        take_jobs();
        team.wait();
        if (failure_) std::rethrow_exception(failure_);
    }

  private:
    // The other threads: stopped and joined whatever happens.
    struct Team {
        explicit Team(Round& r) : round(r) {}
        ~Team() {
            round.abandon();
            for (std::thread& thread : threads) thread.join();
        }
        // The caller's thread goes on asking whether to stop while it waits.
        void wait() {
            std::unique_lock<std::mutex> lock(round.mutex_);
            while (round.running_ > 0) {
                round.idle_.wait_for(lock, std::chrono::milliseconds(10));
                lock.unlock();
                round.stop_.now();
                lock.lock();
            }
        }
        Round& round;
        std::vector<std::thread> threads;
    };

    void abandon() {
        const std::lock_guard<std::mutex> lock(mutex_);
        next_ = jobs_.size();
        for (const auto& stop : stops_) {
            if (stop) stop->request();
        }
    }

    void take_jobs() {
        while (true) {
            const bool stopped = stop_.now();
            std::unique_lock<std::mutex> lock(mutex_);
            if (next_ >= jobs_.size()) return;
            const size_t index = next_++;
            const Job& job = jobs_[index];
            if (stopped || job.pointless(known_)) {
                reports_[index].emplace();
                merge();
                continue;
            }
            stops_[index] = std::make_unique<Stop>(stop_);
            ++running_;
            lock.unlock();
            std::optional<Report> report;
            std::exception_ptr failure;
            try {
                report = job.explorer->work(job.bytes, job.nodes, begin_, *stops_[index]);
            } catch (const std::exception&) {
                failure = std::current_exception();
            }
            lock.lock();
            --running_;
            reports_[index] = std::move(report);
            if (failure) {
                failure_ = failure;
                next_ = jobs_.size();
            } else {
                merge();
            }
            idle_.notify_all();
        }
    }

    // Takes over the reports that no open job precedes, and stops the jobs behind that these make pointless.
    void merge() {
        for (; merged_ < jobs_.size() && reports_[merged_]; ++merged_) {
            const Job& job = jobs_[merged_];
            if (job.pointless(known_)) continue;
            Report& report = *reports_[merged_];
            known_.nodes += report.nodes;
            if (!report.placement.empty()) known_.best.offer(problem_, report.placement, job.explorer->name());
            if (report.none) known_.bound = std::max(known_.bound, std::min(problem_.height_above(job.bytes), known_.best.height));
            job.explorer->learn(std::move(report.lesson));
        }
        for (size_t later = merged_; later < jobs_.size(); ++later) {
            if (stops_[later] && jobs_[later].pointless(known_)) stops_[later]->request();
        }
    }

    const Normal& problem_;
    const std::vector<Job>& jobs_;
    const Stop& stop_;
    Knowledge& known_;
    const Knowledge begin_;
    std::mutex mutex_;
    std::condition_variable idle_;
    size_t next_ = 0;
    size_t merged_ = 0;
    size_t running_ = 0;
    std::vector<std::optional<Report>> reports_;
    std::vector<std::unique_ptr<Stop>> stops_;
    std::exception_ptr failure_;
};

}  // namespace

void run_round(const Normal& problem, const std::vector<Job>& jobs, int32_t threads, const Stop& stop, Knowledge& known) {
    Round(problem, jobs, stop, known).run(static_cast<size_t>(threads));
}

}  // namespace ost::plan
