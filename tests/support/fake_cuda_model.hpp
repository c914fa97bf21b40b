// What fake_cuda's calls work on: streams of operations, events, memory.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "support/fake_cuda.hpp"

namespace cokv::test::fake_cuda {

// A point that streams get to: shared by an event and what refers to one recording of it.
struct mark {
  bool done = false;
  std::uint64_t time = 0;  // nanoseconds
};

struct copy_part {
  std::byte* dst;
  const std::byte* src;
  std::size_t n;
};

// What a kernel does on a stream, a step at a time; with the lock held.
class kernel {
 public:
  virtual ~kernel() = default;
  virtual bool ready() const = 0;  // a step would do something
  virtual void step() = 0;
  virtual bool done() const = 0;
  virtual bool uses(const std::byte* p, std::size_t n) const = 0;
  // The same launch once more, not begun; null of one that can't be captured.
  virtual std::shared_ptr<kernel> again() const { return nullptr; }
};

// What a kernel is that the program loaded by its name and launches, made of a launch's arguments. It does on the host
// what it would do on the device, by the same code.
using kernel_maker = std::shared_ptr<kernel> (*)(void** arguments, unsigned blocks, int device);
void know_kernel(const char* name, kernel_maker make);  // for the whole process
kernel_maker known_kernel(const std::string& name);

struct operation {
  std::vector<copy_part> copies;
  std::function<void()> run;      // a host function, which makes the copies if there are some
  std::shared_ptr<mark> marks;    // a recording of an event
  std::shared_ptr<mark> after;    // blocked until then
  std::uint64_t* word = nullptr;  // written, or waited for
  std::uint64_t value = 0;
  bool waits_for_word = false;
  void* frees = nullptr;
  std::shared_ptr<cokv::test::fake_cuda::kernel> kernel;
  bool begun = false;
  int delay = 0;
};

}  // namespace cokv::test::fake_cuda

struct CUevent_st {
  int epoch;
  std::shared_ptr<cokv::test::fake_cuda::mark> last;
  int device = 0;
};

struct CUgraph_st {
  std::vector<cokv::test::fake_cuda::operation> all;
};

struct CUgraphExec_st {
  int epoch;
  std::vector<cokv::test::fake_cuda::operation> all;
};

struct CUstream_st {
  int epoch;
  int id;
  std::deque<cokv::test::fake_cuda::operation> queue;
  bool busy = false, ending = false, capturing = false;
  std::unique_ptr<CUgraph_st> recorded;  // while what is enqueued is to be part of a graph
  int device = 0;
  std::uint64_t accepted = 0;  // operations, ever
  std::thread thread;
};

namespace cokv::test::fake_cuda {

class model {
 public:
  static model& get();

  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }

  // What a call returns before it does anything; with the lock held.
  cudaError_t enter(const char* name);
  template <class Handle>
  bool valid(Handle* h, const char* call) {
    if (h && h->epoch == epoch) return true;
    violate(std::string(call) + " with a handle of before the reset");
    return false;
  }
  void violate(std::string what) { violations.push_back(std::move(what)); }

  void enqueue(CUstream_st& s, operation op);
  bool step(std::unique_lock<std::mutex>& lock);
  cudaError_t synchronize(std::unique_lock<std::mutex>& lock, CUstream_st& s);
  cudaError_t synchronize(std::unique_lock<std::mutex>& lock, std::shared_ptr<mark> m);
  void stop(std::unique_lock<std::mutex>& lock, CUstream_st* s);
  void reset(options o);
  void forget_handles(std::unique_lock<std::mutex>& lock);
  bool used(const void* p, std::size_t n);               // by an operation that is not done
  void note_copy(const char* call, const copy_part& c);  // a violation, where CUDA would hold its caller up
  // The device reaches all of it; with the lock held.
  bool has(const void* p, std::size_t n, int device) const;
  std::uint64_t below(std::uint64_t bound);  // of the seed
  void changed() { changed_.notify_all(); }  // by whom no operation tells of

  struct allocation {
    std::size_t bytes;
    cudaMemoryType type;
    bool ours;  // to be freed
    int device = 0;
  };

  options how;
  int epoch = 0;
  cudaError_t lost = cudaSuccess;
  std::set<CUstream_st*> streams;
  std::vector<CUstream_st*> order;
  std::set<CUevent_st*> events;
  std::set<CUgraphExec_st*> graphs;
  std::map<std::byte*, allocation> memory;
  std::map<std::string, std::size_t, std::less<>> called;
  std::size_t calls_left = 0;  // until the device is lost; 0: not planned
  cudaError_t loss = cudaSuccess;
  std::thread::id waits_in_vain;  // who gives memory back
  std::size_t resets = 0, opened_handles = 0, used_memory = 0;
  std::vector<std::string> violations;

  struct planned {
    std::string name;
    std::size_t k;
    cudaError_t error;
  };
  std::vector<planned> plan;

 private:
  bool runnable(CUstream_st& s) const;
  bool of_host(const void* p) const;  // pinned, or pageable, which nobody told of
  void advance(std::unique_lock<std::mutex>& lock, CUstream_st& s);
  void serve(CUstream_st* s);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t random_ = 0, now_ = 0;
  bool in_host_function_ = false;  // CUDA runs them one after the other
  int next_id_ = 0;
  std::vector<CUstream_st*> old_streams_;  // kept: using one is a violation that has to be seen, not a crash
  std::vector<CUevent_st*> old_events_;
  std::vector<CUgraphExec_st*> old_graphs_;
  friend void add_stream(model&, CUstream_st*);
};

}  // namespace cokv::test::fake_cuda
