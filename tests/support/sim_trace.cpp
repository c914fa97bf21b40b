#include "support/sim_trace.hpp"

#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>

#include "cokv/runtime/sim_context.hpp"
#include "cokv/runtime/trace.hpp"

namespace cokv::test {
namespace {

constexpr int most_files = 100;
constexpr std::size_t spans = 1 << 20;  // of one trace

class tracer final : public sim_observer {
 public:
  void start(std::string path) {
    path_ = std::move(path);
    count_ = 0;
    if (!path_.empty() && !std::ofstream(path_)) throw std::runtime_error(path_ + ": can't be written");
    sim_context::observe(path_.empty() ? nullptr : this);
  }

  void begins(sim_context& context) override {
    if (count_ == most_files) return;
    files_[&context] = file(++count_);
    trace::of(context.get_executor()).enable(spans);
  }

  void ends(sim_context& context) override {
    const auto found = files_.find(&context);
    if (found == files_.end()) return;
    auto& recorder = trace::of(context.get_executor());
    recorder.add({"run", "seed " + std::to_string(context.seed()), time_point(), context.now(), {}});
    std::ofstream out(found->second);
    recorder.write_perfetto(out);
    files_.erase(found);
  }

 private:
  std::string file(int number) const {
    if (number == 1) return path_;
    const std::filesystem::path p(path_);
    auto name = p.stem().string() + "." + std::to_string(number) + p.extension().string();
    return (p.parent_path() / name).string();
  }

  std::string path_;
  int count_ = 0;
  std::map<sim_context*, std::string> files_;
};

}  // namespace

void trace_simulations(const std::string& path) {
  static tracer the_one;
  the_one.start(path);
}

}  // namespace cokv::test
