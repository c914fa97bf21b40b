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
  arrived_.notify_one();
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

void file_pool::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    arrived_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    --idle_;
    if (stopping_) return;
    pool_job* job = queue_.front();
    queue_.pop_front();
    job->at = pool_job::stage::running;
    lock.unlock();
    job->work();
    lock.lock();
    job->at = pool_job::stage::over;
    // Under the lock: whoever waits in withdraw() frees the job. A context that shuts down refuses the post.
    back_.post([job] { job->finish(*job); });
    ended_.notify_all();
  }
}

}  // namespace cokv::detail
