#include "file_pool.hpp"

#include <algorithm>
#include <system_error>

namespace cokv::detail {

// Without a single thread the job is an error; with fewer than wanted it waits for those there are.
error_code file_pool::submit(pool_job& job) {
  std::lock_guard lock(mutex_);
  job.pool = this;
  job.at = pool_job::stage::queued;
  queue_.push_back(&job);
  if (!stopping_ && idle_ < queue_.size() && threads_.size() < limit_) {
    try {
      threads_.push_back(make_([this] { serve(); }));
      return {};
    } catch (const std::system_error& e) {
      if (threads_.empty()) {
        queue_.pop_back();
        job.at = pool_job::stage::over;
        return e.code();
      }
    }
  }
  if (std::exchange(woken_, true)) return {};
  arrived_.notify_one();
  back_.post([this] {
    std::lock_guard lock(mutex_);
    woken_ = false;
    for (std::size_t i = 0; i < std::min(idle_, queue_.size()); ++i) arrived_.notify_one();
  });
  return {};
}

bool file_pool::withdraw(pool_job& job, bool wait) {
  std::unique_lock lock(mutex_);
  if (job.at == pool_job::stage::queued) {
    std::erase(queue_, &job);
    job.at = pool_job::stage::over;
    return true;
  }
  if (!wait) return false;
  ended_.wait(lock, [&] { return job.at != pool_job::stage::running; });
  return true;
}

void file_pool::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  arrived_.notify_all();
  for (std::thread& t : threads_) t.join();
  threads_.clear();
}

// One, and small ones behind it; the other threads have their share of what there is.
void file_pool::take(std::vector<pool_job*>& jobs) {
  const auto most = (queue_.size() + idle_) / (idle_ + 1);
  for (std::size_t bytes = 0; jobs.size() < most && (jobs.empty() || bytes + queue_.front()->bytes <= taken_bytes);) {
    jobs.push_back(queue_.front());
    bytes += queue_.front()->bytes;
    queue_.pop_front();
  }
  for (auto* job : jobs) job->at = pool_job::stage::running;
}

void file_pool::serve() {
  std::vector<pool_job*> jobs;
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    arrived_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    --idle_;
    if (stopping_) return;
    take(jobs);
    lock.unlock();
    for (auto* job : jobs) job->work();
    lock.lock();
    // Under the lock: whoever waits in withdraw() frees the job. A context that shuts down refuses the post.
    for (auto* job : jobs) {
      job->at = pool_job::stage::over;
      back_.post([job] { job->finish(*job); });
    }
    jobs.clear();
    ended_.notify_all();
  }
}

}  // namespace cokv::detail
