// A device of a simulated host, as tests see it: what goes wrong on it. It is there whether or not a program has it
// open, and everybody who opens its name shares its engines and its memory.
//
//     auto& gpu = cokv::sim::device::of(context, "sim:h100:1");  // the one that open_device(ex, "sim:h100:1") opens
//     gpu.faults.fail_at = 3;                                    // its third operation fails, and its stream with it
//     gpu.lose(10s);                                             // everything on it fails once; opens again after 10 s
//
// Names are `sim:SPEC` and `sim:SPEC:N`, SPEC a published one, one that was defined, or a file (sim_device_spec.hpp), N
// telling devices of one host apart; without it, 0. Devices of a host whose specs have NVLink reach each other's memory
// over it.
//
// | fault | what the program sees |
// |---|---|
// | fail, fail_copy, fail_at | the operation ends with `error` after its time, what it wrote is worth nothing; its stream too |
// | slow | the operation takes slow_factor times as long |
// | lose | every stream fails with device_lost, memory is worth nothing; opening fails too, for a while |
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "cokv/runtime/sim_device_spec.hpp"

namespace cokv::sim {

struct device_faults {
  // Probabilities, an operation (a copy, a batch of them, a kernel).
  double fail = 0;
  double fail_copy = 0;  // of copies and batches of them alone, beside that
  double slow = 0;
  double lose = 0;

  std::uint64_t fail_at = 0;  // the number of the operation that fails, the device's first being 1
  error_code error = errc::device_failed;
  double slow_factor = 10;
  double slowdown = 1;              // of every operation
  duration lost_for = duration(0);  // of those that `lose` loses
};

struct device_counts {
  std::uint64_t operations = 0, bytes = 0, failed = 0, slowed = 0, lost = 0;
};

class device {
 public:
  // Throws config_error for a name that no simulated device has.
  static device& of(sim_context& context, std::string_view name, std::string_view host = "home");

  // From here on "sim:NAME" means this one on that context. Throws config_error where there is one of that name.
  static void define(sim_context& context, device_spec spec);

  device_faults faults;
  device_counts counts;

  const device_spec& spec() const noexcept;
  const std::string& name() const noexcept;
  std::uint64_t allocated() const noexcept;  // bytes
  bool lost() const noexcept;                // and not back yet

  // Handles to it stay lost; who opens it afterwards has an empty device.
  void lose(duration for_how_long = duration(0));

  struct state;
  explicit device(std::unique_ptr<state> s);
  ~device();
  state& get_state() noexcept { return *state_; }

 private:
  std::unique_ptr<state> state_;
};

}  // namespace cokv::sim
