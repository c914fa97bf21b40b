// A file that a command writes its results to: known to be writable before anything is done for them.
//
//     result_file figures("--json", o.json);      // config_error: "--json: NAME can't be written"
//     ...
//     if (figures.wanted()) figures.write(text);
#pragma once

#include <fstream>
#include <string>

#include "cokv/runtime/error.hpp"

namespace cokv::cli {

class result_file {
 public:
  result_file(std::string flag, std::string name) : flag_(std::move(flag)), name_(std::move(name)) {
    if (name_.empty()) return;
    to_.open(name_, std::ios::binary | std::ios::app);
    check();
  }
  bool wanted() const { return !name_.empty(); }
  void write(const std::string& text) {
    to_.close();
    to_.open(name_, std::ios::binary | std::ios::trunc);
    to_ << text;
    to_.close();
    check();
  }

 private:
  void check() const {
    if (!to_) throw config_error(flag_ + ": " + name_ + " can't be written");
  }
  std::string flag_, name_;
  std::ofstream to_;
};

}  // namespace cokv::cli
