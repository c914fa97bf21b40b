// A stand-in for the calls of the CUDA runtime and driver that cokv makes, linked in their place. What the CUDA
// backend promises is tested on it without a device.
//
//     fake_cuda::reset({.seed = 7, .max_delay = 3});
//     auto device = open_device(ex, "cuda:0").value();
//     ... enqueue ...
//     fake_cuda::step();                                   // one step of each stream that can go on
//     CHECK(fake_cuda::violations().empty());
//
// stepped: nothing happens but by step(), on the caller's thread. threaded: a thread for each stream, as a device goes
// on by itself. A copy poisons its destination when it begins and fills it when it ends, some steps later; streams go
// on in an order and with delays that the seed picks. Host functions run one at a time: one that waits holds back all
// others. What CUDA leaves undefined is a violation: memory or streams that go while they are used, handles of a device
// that was reset, host functions after an error. So is a copy between host memory, for which CUDA holds its caller up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace cokv::test::fake_cuda {

enum class mode { stepped, threaded };

struct options {
  fake_cuda::mode mode = fake_cuda::mode::stepped;
  int devices = 1;
  std::uint64_t seed = 0;  // 0: in the order of creation, without delays
  int max_delay = 0;       // steps that an operation may take longer
  bool words = true;       // the driver writes and waits for words
  bool batches = true;     // it knows cudaMemcpyBatchAsync
  std::size_t memory = std::size_t{1} << 30;
};

void reset(options o = {});
bool step();   // false: every stream is empty or blocked
void drain();  // until then; threaded: until every stream is empty

// From now on the k-th call of this name (any, when empty) returns the error, once. k from 1.
void fail_call(std::string_view name, std::size_t k, int cuda_error);
std::size_t calls(std::string_view name);  // since reset, and launches of a kernel by its own name; all, when empty

// The error sticks: operations stop, every call says so, host functions are not called any more.
void lose_device(int cuda_error);
void lose_after(std::size_t calls, int cuda_error);  // at that call from now on; 0 calls it off
bool device_is_lost();
std::size_t device_resets();

void set_capturing(void* stream, bool on);

// From now on, until it is said of nobody, the device is never idle for that thread: memory that it gives back is a violation.
void never_idle_for(std::thread::id who);

bool would_use(const void* p, std::size_t n);  // an operation that is not done

std::size_t own_allocations();  // the stand-in's, of those that allocation_counter counts

std::size_t live_streams();
std::size_t live_events();
std::size_t live_graphs();       // that can be launched
std::size_t live_allocations();  // with registered memory and opened handles
std::vector<std::string> violations();

}  // namespace cokv::test::fake_cuda
