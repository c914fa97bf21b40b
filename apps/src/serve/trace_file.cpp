#include "serve/trace_file.hpp"

#include <cstdio>
#include <fstream>

#include "cokv/runtime/error.hpp"

namespace cokv::serve {

trace_file::trace_file(std::string_view flag, std::string path)
    : flag_(flag), path_(std::move(path)), unfinished_(path_ + ".part") {
  if (!std::ofstream(unfinished_)) throw config_error(flag_ + ' ' + path_ + ": cannot be written");
}

trace_file::~trace_file() {
  if (!unfinished_.empty()) std::remove(unfinished_.c_str());
}

void trace_file::write(const trace::recorder& spans) {
  std::ofstream out(unfinished_, std::ios::trunc);
  spans.write_perfetto(out);
  out.close();
  if (!out || std::rename(unfinished_.c_str(), path_.c_str()) != 0)
    throw config_error(flag_ + ' ' + path_ + ": cannot be written");
  unfinished_.clear();
}

}  // namespace cokv::serve
