#include "rounds.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "portfolio.h"

namespace ost::plan {

Rounds::Rounds(const Normal& problem, const Conflicts* conflicts, int32_t threads)
    : problem_(problem), conflicts_(conflicts), orders_(problem), workers_(threads) {}

// A round that runs. All that threads share is behind one mutex; what is long is done outside of it.
class Rounds::Round {
  public:
    Round(Rounds& rounds, const std::vector<Job>& jobs, const Stop& stop, Knowledge& known)
        : rounds_(rounds), jobs_(jobs), stop_(stop), known_(known), begin_(known), reports_(jobs.size()), stops_(jobs.size()) {}

    void run() {
        const size_t threads = std::min(rounds_.workers_.size(), jobs_.size());
        Team team(*this);
        for (size_t t = 1; t < threads; ++t) team.threads.emplace_back([this, t] { take_jobs(rounds_.workers_[t]); });
        take_jobs(rounds_.workers_[0]);
        team.join();
        if (failure_) std::rethrow_exception(failure_);
    }

  private:
    // Threads that are stopped and joined whatever happens.
    struct Team {
        explicit Team(Round& r) : round(r) {}
        ~Team() {
            round.abandon();
            for (std::thread& thread : threads) thread.join();
        }
        // The caller's thread goes on asking whether to stop while it waits.
        void join() {
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

    void take_jobs(Worker& worker) {
        while (true) {
            const bool stopped = stop_.now();
            std::unique_lock<std::mutex> lock(mutex_);
            if (next_ >= jobs_.size()) return;
            const size_t job = next_++;
            if (stopped || jobs_[job].pointless(known_)) {
                report(job, Report());
                continue;
            }
            stops_[job] = std::make_unique<Stop>(stop_);
            ++running_;
            lock.unlock();
            Report found;
            std::exception_ptr failure;
            try {
                found = rounds_.work(jobs_[job], begin_, worker, *stops_[job]);
            } catch (const std::exception&) {
                failure = std::current_exception();
            }
            lock.lock();
            --running_;
            if (failure) {
                failure_ = failure;
                next_ = jobs_.size();
            } else {
                report(job, std::move(found));
            }
            idle_.notify_all();
        }
    }

    // Merges the reports that no open job precedes, and stops the jobs behind that these make pointless.
    void report(size_t job, Report&& found) {
        reports_[job] = std::move(found);
        for (; merged_ < jobs_.size() && reports_[merged_]; ++merged_) {
            if (!jobs_[merged_].pointless(known_)) rounds_.merge(jobs_[merged_], *reports_[merged_], known_);
            reports_[merged_]->placement = {};
        }
        for (size_t later = merged_; later < jobs_.size(); ++later) {
            if (stops_[later] && jobs_[later].pointless(known_)) stops_[later]->request();
        }
    }

    Rounds& rounds_;
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

void Rounds::run(const std::vector<Job>& jobs, const Stop& stop, Knowledge& known) { Round(*this, jobs, stop, known).run(); }

Rounds::Report Rounds::work(const Job& job, const Knowledge& known, Worker& worker, const Stop& stop) const {
    Report report;
    if (job.kind == Job::kImprove) {
        Incumbent best = known.best;
        report.nodes = improve(problem_, job.nodes, job.seed, stop, best);
        if (best.height < known.best.height) {
            report.placement = std::move(best.offsets);
            report.finder = std::move(best.finder);
        }
        return report;
    }
    if (!worker.exact) worker.exact = std::make_unique<Exact>(*conflicts_);
    const std::vector<int32_t> rank = orders_.ranks(job.keys, job.noise, job.seed);
    Course course = {&rank, job.nodes};
    Target target = Target::of(problem_, job.bytes);
    if (job.kind == Job::kDive) {
        target = {job.bytes / problem_.unit};
        course.rise = job.rise;
        course.patience = job.patience;
        course.ceiling = problem_.highest_end(known.best.height - 1);
    }
    const Found found = worker.exact->search(target, course, stop);
    report.nodes = std::min(worker.exact->nodes(), job.nodes);
    report.none = found == Found::kNone && job.kind == Job::kSearch;
    if (found == Found::kPlacement) {
        report.placement = worker.exact->offsets();
        report.finder = (job.kind == Job::kDive ? "dive/" : "search/") + job.keys;
    }
    return report;
}

void Rounds::merge(const Job& job, Report& report, Knowledge& known) const {
    known.nodes += report.nodes;
    if (!report.placement.empty()) known.best.offer(problem_, report.placement, report.finder);
    if (report.none) known.bound = std::max(known.bound, std::min(problem_.height_above(job.bytes), known.best.height));
}

}  // namespace ost::plan
