// Our own threads. XLA's pool is never used: its handlers occupy it, and one
// that waits for tasks of the same pool can deadlock on a small machine.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace dynemb {

class ThreadPool {
 public:
  // One pool a process, as wide as the cores that the process may use. Never
  // destroyed, so calls in flight at exit stay legal.
  static ThreadPool& Shared();

  int width() const { return width_; }

  // Calls task(0) ... task(tasks - 1), in any order, and returns when all are
  // done. The caller works too: progress never depends on a free worker, so
  // several callers, and a forked child without workers, are fine.
  void Run(int tasks, const std::function<void(int)>& task);

  // Calls body(begin, end) on pieces of [0, count) of at least `grain`.
  void ParallelFor(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

 private:
  struct Job;

  explicit ThreadPool(int width);
  void Work();

  const int width_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Job>> jobs_;
};

}  // namespace dynemb
