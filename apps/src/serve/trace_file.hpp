// The trace that a command writes when it ends: whole, under its name, or not at all.
//
//     serve::trace_file file("--trace", options.trace);   // config_error: it can't be written there
//     ...
//     file.write(trace::of(ex));
#pragma once

#include <string>
#include <string_view>

#include "cokv/runtime/trace.hpp"

namespace cokv::serve {

class trace_file {
 public:
  trace_file(std::string_view flag, std::string path);
  trace_file(const trace_file&) = delete;
  ~trace_file();  // removes what was not finished
  void write(const trace::recorder& spans);

 private:
  std::string flag_, path_, unfinished_;
};

}  // namespace cokv::serve
