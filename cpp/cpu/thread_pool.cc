#include "cpu/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>

namespace dynemb {

struct ThreadPool::Job {
  Job(int count, const std::function<void(int)>* body) : tasks(count), task(body) {}

  // Works until no task is left to take; true if it did the last one.
  void Help() {
    for (int i = next.fetch_add(1); i < tasks; i = next.fetch_add(1)) {
      (*task)(i);
      if (done.fetch_add(1) + 1 == tasks) {
        std::lock_guard<std::mutex> lock(mutex);
        finished.notify_all();
      }
    }
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex);
    finished.wait(lock, [&] { return done.load() == tasks; });
  }

  const int tasks;
  const std::function<void(int)>* const task;
  std::atomic<int> next{0};
  std::atomic<int> done{0};
  std::mutex mutex;
  std::condition_variable finished;
};

namespace {

int UsableCores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

ThreadPool& ThreadPool::Shared() {
  static ThreadPool* pool = new ThreadPool(UsableCores());
  return *pool;
}

ThreadPool::ThreadPool(int width) : width_(width) {
  for (int i = 1; i < width; ++i) std::thread([this] { Work(); }).detach();
}

void ThreadPool::Work() {
  for (;;) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return !jobs_.empty(); });
      job = jobs_.front();
    }
    job->Help();
    std::lock_guard<std::mutex> lock(mutex_);
    std::erase(jobs_, job);
  }
}

void ThreadPool::Run(int tasks, const std::function<void(int)>& task) {
  if (tasks <= 0) return;
  if (tasks == 1 || width_ == 1) {
    for (int i = 0; i < tasks; ++i) task(i);
    return;
  }
  auto job = std::make_shared<Job>(tasks, &task);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back(job);
  }
  wake_.notify_all();
  job->Help();
  {
    // No worker may take it up from now on: `task` dies with this call.
    std::lock_guard<std::mutex> lock(mutex_);
    std::erase(jobs_, job);
  }
  job->Wait();
}

void ThreadPool::ParallelFor(int64_t count, int64_t grain,
                             const std::function<void(int64_t, int64_t)>& body) {
  if (count <= 0) return;
  // A few pieces a thread level out what the threads differ in.
  int64_t pieces = std::min<int64_t>((count + grain - 1) / grain, int64_t{4} * width_);
  if (pieces <= 1) {
    body(0, count);
    return;
  }
  int64_t size = (count + pieces - 1) / pieces;
  Run(static_cast<int>(pieces), [&](int i) {
    int64_t begin = i * size;
    int64_t end = std::min(count, begin + size);
    if (begin < end) body(begin, end);
  });
}

}  // namespace dynemb
