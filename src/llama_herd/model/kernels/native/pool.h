// A pool of threads that take the chunks of one job after another.
//
// It is ours, since a second OpenMP runtime beside torch's would be one too many, and since a job here is done when
// its chunks are done: a thread that another process keeps from its core holds up one chunk at most, and no barrier.
#pragma once

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <x86intrin.h>

#include <atomic>
#include <cstdint>

namespace herd {

typedef void (*Work)(const void* job, int64_t chunk);

// How long a thread looks for work before it sleeps: 1 to 2 ms, more than what lies between two products of a step.
// To wake a core of a virtual machine takes as long as a small product. Meanwhile it gives way to whoever waits.
constexpr uint64_t SPIN_CYCLES = 4000000;
constexpr int MAX_THREADS = 1024;
constexpr int CHUNKS_A_THREAD = 4;  // so that one that another process holds up has little left to do
constexpr uint32_t NO_CHUNK = UINT32_MAX;

inline void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

inline void wake(std::atomic<uint32_t>& word, int count) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

// Spin, then sleep, until the word has another value. `sleepers` counts those who must be woken.
inline void wait_while(std::atomic<uint32_t>& word, uint32_t value, std::atomic<int>& sleepers) {
  const uint64_t start = __rdtsc();
  while (word.load(std::memory_order_acquire) == value) {
    if (__rdtsc() - start < SPIN_CYCLES) {
      sched_yield();
      continue;
    }
    sleepers.fetch_add(1);
    sleep_while(word, value);
    sleepers.fetch_sub(1);
  }
}

class Pool {
 public:
  // Run all chunks, on this thread and up to num_threads - 1 others. While another thread's job has them, this one
  // works alone; and where there are more chunks than they can count.
  void run(Work work, const void* job, int64_t num_chunks, int num_threads) {
    const bool is_shareable = num_threads > 1 && num_chunks > 1 && num_chunks < NO_CHUNK;
    const bool shares = is_shareable && !busy_.exchange(true);
    if (!shares) {
      for (int64_t chunk = 0; chunk < num_chunks; chunk++) work(job, chunk);
      return;
    }
    grow((num_threads < MAX_THREADS ? num_threads : MAX_THREADS) - 1);
    const uint32_t number = start(work, job, uint32_t(num_chunks), num_threads - 1);
    take_chunks(number);
    for (uint32_t done; (done = num_done_.load(std::memory_order_acquire)) != uint32_t(num_chunks);)
      wait_while(num_done_, done, num_waiting_);
    busy_.store(false, std::memory_order_release);
  }

  // A forked child has none of our threads.
  void forget() {
    num_threads_ = 0;
    num_sleeping_ = 0;
    num_waiting_ = 0;
    next_ = uint64_t(job_number_.load()) << 32 | NO_CHUNK;
    busy_ = false;
  }

 private:
  uint32_t start(Work work, const void* job, uint32_t num_chunks, int num_helpers) {
    const uint32_t number = job_number_.load() + 1;
    // A thread that is late may still look at the last job: it must find no chunk while this one is written.
    next_.store(uint64_t(number - 1) << 32 | NO_CHUNK);
    work_ = work;
    job_ = job;
    num_chunks_ = num_chunks;
    num_helpers_ = num_helpers;
    num_done_ = 0;
    next_.store(uint64_t(number) << 32);
    job_number_.store(number);
    if (num_sleeping_.load() > 0) wake(job_number_, num_helpers);
    return number;
  }

  void take_chunks(uint32_t number) {
    for (;;) {
      uint64_t next = next_.load();
      const uint32_t chunk = uint32_t(next);
      const Work work = work_.load();
      const void* job = job_.load();
      const uint32_t num_chunks = num_chunks_.load();
      if (uint32_t(next >> 32) != number || chunk >= num_chunks) return;
      // What was just read belongs to this job if `next_` is still the same: it changes before the rest does.
      if (!next_.compare_exchange_weak(next, next + 1)) continue;
      work(job, chunk);
      const uint32_t num_done = num_done_.fetch_add(1) + 1;
      if (num_done == num_chunks && num_waiting_.load() > 0) wake(num_done_, 1);
    }
  }

  void help(int index) {
    uint32_t seen = 0;
    for (;;) {
      wait_while(job_number_, seen, num_sleeping_);
      seen = job_number_.load();
      if (index < num_helpers_.load()) take_chunks(seen);
    }
  }

  struct Helper {
    Pool* pool;
    int index;
  };

  static void* main_of(void* argument) {
    const Helper helper = *static_cast<Helper*>(argument);
    helper.pool->help(helper.index);
    return nullptr;
  }

  // Signals go to the threads that know what to do with them.
  void grow(int num_threads) {
    if (num_threads_ >= num_threads) return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (num_threads_ < num_threads) {
      helpers_[num_threads_] = {this, num_threads_};
      pthread_t thread;
      if (pthread_create(&thread, nullptr, main_of, &helpers_[num_threads_])) break;  // then with fewer
      pthread_detach(thread);
      num_threads_++;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  std::atomic<bool> busy_{false};
  std::atomic<uint64_t> next_{NO_CHUNK};  // number of the job, and its next chunk
  std::atomic<Work> work_{nullptr};
  std::atomic<const void*> job_{nullptr};
  std::atomic<uint32_t> num_chunks_{0};
  std::atomic<int> num_helpers_{0};
  std::atomic<uint32_t> num_done_{0};
  std::atomic<uint32_t> job_number_{0};
  std::atomic<int> num_sleeping_{0};
  std::atomic<int> num_waiting_{0};
  int num_threads_ = 0;
  Helper helpers_[MAX_THREADS];
};

static Pool pool;

__attribute__((constructor)) static void watch_forks() {
  pthread_atfork(nullptr, nullptr, [] { pool.forget(); });
}

}  // namespace herd
