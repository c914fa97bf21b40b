// Where figures come from: the machine and how busy it was, the commit, the command line. Printed above the tables, and
// beside the rows in what --json writes.
#pragma once

#include <sys/sysinfo.h>

#include <boost/json.hpp>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

namespace cokv::bench {

namespace json = boost::json;

// To so many significant digits: figures that are read by people and kept in a repository.
inline double rounded(double v, int digits = 4) {
  std::ostringstream text;
  text.precision(digits);
  text << v;
  return std::stod(text.str());
}

class origin {
 public:
  origin(int argc, char** argv) {
    machine_ = cpu() + ", " + std::to_string(std::thread::hardware_concurrency()) + " cores";
    commit_ = first_line("git -C " COKV_SOURCE_DIR " rev-parse --short HEAD 2>/dev/null");
    for (int i = 0; i < argc; ++i)
      command_ +=
          i == 0 ? std::string(argv[i]).substr(std::string(argv[i]).rfind('/') + 1) : std::string(" ") + argv[i];
    double loads[1] = {};
    if (getloadavg(loads, 1) == 1) load_ = loads[0];
  }

  void print() const {
    std::printf("%s, load %.1f before, commit %s: `%s`\n\n", machine_.c_str(), load_, commit_.c_str(),
                command_.c_str());
  }

  void write(const std::string& path, json::object figures) const {
    json::object all{{"machine", machine_}, {"load", rounded(load_)}, {"commit", commit_}, {"command", command_}};
    for (auto& f : figures) all[f.key()] = std::move(f.value());
    std::ofstream out(path);
    // A row a line: small, and what changed is seen in a diff.
    out << "{";
    const char* comma = "\n";
    for (const auto& member : all) {
      out << comma << ' ' << json::serialize(member.key()) << ": ";
      comma = ",\n";
      if (!member.value().is_array()) {
        out << json::serialize(member.value());
        continue;
      }
      const char* between = "[\n  ";
      for (const auto& row : member.value().as_array()) {
        out << between << json::serialize(row);
        between = ",\n  ";
      }
      out << "]";
    }
    out << "\n}\n";
  }

 private:
  static std::string cpu() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);)
      if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
    return "unknown CPU";
  }
  static std::string first_line(const char* command) {
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command, "r"), ::pclose);
    char line[100] = {};
    if (!pipe || !std::fgets(line, sizeof line, pipe.get())) return "unknown";
    std::string text(line);
    return text.substr(0, text.find('\n'));
  }

  std::string machine_, commit_, command_;
  double load_ = 0;
};

}  // namespace cokv::bench
