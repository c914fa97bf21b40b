// The moving kernel on fake_cuda, for programs that link this: every thread of every block, by the code that nvcc compiles.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "../../runtime/src/cuda/move_kernel.hpp"
#include "support/fake_cuda_model.hpp"

namespace cokv::test::fake_cuda {
namespace {

// Pieces in any order; what they are to hold is poisoned until they are moved.
class move_on_fake final : public kernel {
 public:
  move_on_fake(const cuda::move_job& job, int device) : pieces_(job.pieces, job.pieces + job.count), device_(device) {}

  bool ready() const override { return true; }
  bool done() const override { return pieces_.empty(); }
  void step() override {
    auto& m = model::get();
    if (!std::exchange(begun_, true)) {
      for (const auto& p : pieces_) {
        if (!m.has(p.to, p.bytes, device_) || !m.has(p.from, p.bytes, device_)) {
          m.violate("a kernel touches what its device doesn't have");
          return pieces_.clear();
        }
        std::memset(p.to, 0xDB, p.bytes);
      }
      return;
    }
    for (auto n = 1 + (m.how.seed ? m.below(pieces_.size()) : pieces_.size() - 1); n > 0; --n) {
      const auto i = m.how.seed ? m.below(pieces_.size()) : 0;
      auto job = std::make_unique<cuda::move_job>();
      job->count = 1;
      job->pieces[0] = pieces_[i];
      for (std::uint32_t thread = 0; thread < cuda::move_threads; ++thread) cuda::move_pieces(*job, 0, 1, thread);
      pieces_.erase(pieces_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  bool uses(const std::byte* p, std::size_t n) const override {
    return std::ranges::any_of(pieces_, [&](const cuda::move_piece& one) {
      return (one.to < p + n && p < one.to + one.bytes) || (one.from < p + n && p < one.from + one.bytes);
    });
  }

 private:
  std::vector<cuda::move_piece> pieces_;
  const int device_;
  bool begun_ = false;
};

[[maybe_unused]] const bool known = [] {
  know_kernel("cokv_move", [](void** arguments, unsigned, int device) -> std::shared_ptr<kernel> {
    return std::make_shared<move_on_fake>(*static_cast<const cuda::move_job*>(arguments[0]), device);
  });
  return true;
}();

}  // namespace
}  // namespace cokv::test::fake_cuda
