#include "serve/trace_file.hpp"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "cokv/runtime/error.hpp"

namespace cokv::serve {

trace_file::trace_file(std::string_view flag, std::string path)
    : flag_(flag), path_(std::move(path)), unfinished_(path_ + ".part") {
  namespace fs = std::filesystem;
  if (!trace::compiled) throw config_error(flag_ + ": this build has no tracing (COKV_TRACING=OFF)");
  std::error_code ec;
  const auto there = fs::status(path_, ec);
  if (path_.ends_with('/') || fs::is_directory(there))
    throw config_error(flag_ + ' ' + path_ + ": is a folder; it takes the name of a file");
  // It is replaced at the end, which is nothing to do to a device.
  if (fs::exists(there) && !fs::is_regular_file(there)) throw config_error(flag_ + ' ' + path_ + ": is not a file");
  const bool writable = !fs::exists(there) || ::access(path_.c_str(), W_OK) == 0;
  if (!writable || !std::ofstream(unfinished_)) throw config_error(flag_ + ' ' + path_ + ": cannot be written");
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
