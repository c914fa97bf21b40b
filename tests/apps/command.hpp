// `cokv` as its command line runs it, in this process, and a folder for its files.
#pragma once

#include <unistd.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "cli/cli.hpp"

namespace cokv::test {

struct command_outcome {
  int code;
  std::string out, err;
};

inline command_outcome run_command(std::vector<std::string> arguments) {
  std::ostringstream out, err;
  const int code = cli::run(std::move(arguments), out, err);
  return {code, out.str(), err.str()};
}

// `name`, before others.
inline command_outcome run_command(const char* name, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), name);
  return run_command(std::move(arguments));
}

struct command_folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() / ("cokv_command." + std::to_string(::getpid()));
  command_folder() { std::filesystem::create_directory(path); }
  ~command_folder() { std::filesystem::remove_all(path); }
  command_folder(const command_folder&) = delete;

  // Its path; written, where there is a text.
  std::string file(const std::string& name, const std::string& text = "") const {
    if (!text.empty()) std::ofstream(path / name) << text;
    return (path / name).string();
  }
};

inline std::string text_of(const std::string& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace cokv::test
