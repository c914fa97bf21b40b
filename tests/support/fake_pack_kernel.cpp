#include "support/fake_pack_kernel.hpp"

#include <algorithm>
#include <cstring>

#include "support/fake_cuda_model.hpp"
#include "support/pack_on_host.hpp"

namespace cokv::test::fake_cuda {
namespace {

template <bool Packs>
class pack_on_fake final : public kernel {
 public:
  pack_on_fake(const detail::pack_job& job, unsigned blocks, int device) : job_(job), blocks_(blocks), device_(device) {
    for (unsigned b = 0; b < blocks; ++b) left_.push_back(b);
  }

  bool ready() const override { return true; }
  bool done() const override { return left_.empty(); }

  void step() override {
    if (!begun_) return begin();
    auto& m = model::get();
    for (auto n = 1 + (m.how.seed ? m.below(blocks_) : blocks_ - 1); n > 0 && !left_.empty(); --n) {
      const auto i = m.how.seed ? m.below(left_.size()) : 0;
      detail::pack_tile tile;
      std::memset(static_cast<void*>(&tile), 0xDB, sizeof tile);
      detail::run_block<Packs>(job_, tile, left_[i], blocks_);
      left_.erase(left_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  bool uses(const std::byte* p, std::size_t n) const override {
    bool any = false;
    for_each_range([&](void* at, std::size_t bytes, bool) {
      auto* first = static_cast<std::byte*>(at);
      any |= first < p + n && p < first + bytes;
    });
    return any;
  }

 private:
  void begin() {
    begun_ = true;
    bool all = true;
    for_each_range([&](void* at, std::size_t bytes, bool) { all &= model::get().has(at, bytes, device_); });
    if (!all) {
      model::get().violate("a kernel touches what its device doesn't have");
      return left_.clear();
    }
    for_each_range([&](void* at, std::size_t bytes, bool written) {
      if (written) std::memset(at, 0xDB, bytes);
    });
  }

  // f(address, bytes, written)
  template <class F>
  void for_each_range(const F& f) const {
    const auto runs = detail::tiles_of(job_.bytes) ? job_.first[detail::tiles_of(job_.bytes)] + 1 : 0;
    f(const_cast<detail::packed_run*>(job_.runs), runs * sizeof *job_.runs, false);
    f(const_cast<std::uint32_t*>(job_.first), (detail::tiles_of(job_.bytes) + 1) * sizeof *job_.first, false);
    f(job_.packed, job_.bytes, Packs);
    if (job_.leaves) f(job_.leaves, detail::leaves_of(job_.bytes) * sizeof *job_.leaves, true);
    for (std::uint32_t r = 0; r < runs; ++r)
      for (auto at = std::max<std::int64_t>(job_.runs[r].at, 0); at < static_cast<std::int64_t>(job_.bytes);) {
        const auto offset = static_cast<std::uint64_t>(at - job_.runs[r].at);
        if (r + 1 < runs && at >= job_.runs[r + 1].at) break;
        const auto extent = detail::find_in(job_.runs[r], offset);
        const auto n = std::min(extent.bytes, job_.bytes - static_cast<std::uint64_t>(at));
        f(extent.there, n, !Packs);
        at += static_cast<std::int64_t>(n);
      }
  }

  const detail::pack_job job_;
  const unsigned blocks_;
  const int device_;
  std::vector<unsigned> left_;
  bool begun_ = false;
};

template <bool Packs>
std::shared_ptr<kernel> make(void** arguments, unsigned blocks, int device) {
  return std::make_shared<pack_on_fake<Packs>>(*static_cast<const detail::pack_job*>(arguments[0]), blocks, device);
}

}  // namespace

void know_pack_kernels() {
  know_kernel("cokv_pack", make<true>);
  know_kernel("cokv_unpack", make<false>);
}

}  // namespace cokv::test::fake_cuda
