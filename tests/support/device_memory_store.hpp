// A store in front of a staged one whose callers know host memory alone: what they give and get lies in memory of a
// simulated device meanwhile. When a call is over, nobody but its caller may hold that memory, nor write it later.
#pragma once

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "cokv/kvstream/staged_store.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/sim_device.hpp"
#include "support/co_test.hpp"

namespace cokv::test {

// Memory of a simulated device is the host's: tests look at it and fill it.
inline std::vector<buffer> device_segments(device& of, std::size_t count, std::size_t bytes, int fill = 0xee) {
  std::vector<buffer> out;
  for (std::size_t i = 0; i < count; ++i) {
    out.push_back(of.allocate(bytes).value());
    std::memset(out.back().data(), fill, bytes);
  }
  return out;
}

inline std::vector<buffer> device_copies(device& of, const std::vector<buffer>& from) {
  std::vector<buffer> out;
  for (const auto& f : from) {
    out.push_back(of.allocate(f.size()).value());
    std::memcpy(out.back().data(), f.data(), f.size());
  }
  return out;
}

// No copy that touches them is on its way.
inline bool nobody_uses(const std::vector<buffer>& memory) {
  bool alone = true;
  for (const auto& b : memory) alone = alone && b.use_count() == 1;
  return alone;
}

class device_memory_store final : public store {
 public:
  device_memory_store(std::unique_ptr<store> s, device d)
      : store(s->get_executor()), staged_(std::move(s)), device_(std::move(d)) {}
  ~device_memory_store() override {
    for (const auto& b : *done_with_)
      for (auto byte : b.bytes()) stable_ = stable_ && byte == mark;
    CHECK(stable_);
  }

  store_info info() const override { return staged_->info(); }

 private:
  static constexpr std::byte mark{0xd7};
  using watched = std::shared_ptr<std::vector<buffer>>;

  // What a simulated stream had begun when it failed has handlers that hold buffers, and do nothing with them.
  static bool had_faults(const device& d) {
    const auto* sim = d.get_executor().target<sim_context::executor_type>();
    if (!sim) return false;
    const auto& gpu =
        sim::device::of(static_cast<sim_context&>(asio::query(d.get_executor(), asio::execution::context)), d.name());
    return gpu.counts.failed + gpu.counts.lost != 0;
  }
  static void end_of(const device& d, std::vector<buffer> memory, const watched& done_with) {
    CHECK((nobody_uses(memory) || had_faults(d)));
    for (auto& b : memory) {
      std::memset(b.data(), static_cast<int>(mark), b.size());
      if (done_with->size() < 200) done_with->push_back(std::move(b));
    }
  }

  class writer final : public block_writer {
   public:
    writer(std::unique_ptr<block_writer> w, device d, watched done_with)
        : block_writer(w->get_executor()), to_(std::move(w)), device_(std::move(d)), done_with_(std::move(done_with)) {}
    std::size_t kept() const override { return to_->kept(); }
    bool keeps(std::size_t i) const override { return to_->keeps(i); }

   private:
    void do_write(std::uint32_t layer, std::vector<buffer> segments, done_handler h) override {
      cokv::detail::run_as_operation(get_executor(), write(to_, device_, layer, std::move(segments), done_with_),
                                     std::move(h));
    }
    static awaitable<error_code> write(std::shared_ptr<block_writer> to, device d, std::uint32_t layer,
                                       std::vector<buffer> segments, watched done_with) {
      co_await asio::this_coro::throw_if_cancelled(false);
      auto there = device_copies(d, segments);
      auto done = co_await to->async_write(layer, there, as_result);
      end_of(d, std::move(there), done_with);
      co_return done ? error_code() : done.error();
    }
    void do_commit(done_handler h) override { to_->async_commit(std::move(h)); }

    std::shared_ptr<block_writer> to_;
    device device_;
    watched done_with_;
  };

  class reader final : public block_reader {
   public:
    reader(std::unique_ptr<block_reader> r, device d, watched done_with)
        : block_reader(r->get_executor()),
          from_(std::move(r)),
          device_(std::move(d)),
          done_with_(std::move(done_with)) {}
    std::size_t found() const noexcept override { return from_->found(); }

   private:
    void do_read(std::uint32_t layer, std::vector<buffer> into, count_handler h) override {
      cokv::detail::run_as_operation(get_executor(), read(from_, device_, layer, std::move(into), done_with_),
                                     std::move(h));
    }
    static awaitable<result<std::size_t>> read(std::shared_ptr<block_reader> from, device d, std::uint32_t layer,
                                               std::vector<buffer> into, watched done_with) {
      co_await asio::this_coro::throw_if_cancelled(false);
      auto there = device_copies(d, into);
      auto n = co_await from->async_read(layer, there, as_result);
      for (std::size_t i = 0; n && i < *n; ++i) std::memcpy(into[i].data(), there[i].data(), into[i].size());
      end_of(d, std::move(there), done_with);
      co_return n;
    }

    std::shared_ptr<block_reader> from_;
    device device_;
    watched done_with_;
  };

  void do_match(namespace_id ns, std::vector<block_key> keys, match_options o, count_handler h) override {
    staged_->async_match(ns, std::move(keys), o, std::move(h));
  }
  void do_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys, write_options o,
                     writer_handler h) override {
    static constexpr auto open = [](store& s, device d, watched done_with, namespace_id ns, block_layout layout,
                                    std::vector<block_key> keys,
                                    write_options o) -> awaitable<result<std::unique_ptr<block_writer>>> {
      auto opened = co_await s.async_open_write(ns, std::move(layout), std::move(keys), std::move(o), as_result);
      if (!opened) co_return opened.error();
      co_return std::make_unique<writer>(std::move(*opened), std::move(d), std::move(done_with));
    };
    cokv::detail::run_as_operation(
        get_executor(), open(*staged_, device_, done_with_, ns, std::move(layout), std::move(keys), std::move(o)),
        std::move(h));
  }
  void do_open_read(namespace_id ns, block_layout layout, std::vector<block_key> keys, reader_handler h) override {
    static constexpr auto open = [](store& s, device d, watched done_with, namespace_id ns, block_layout layout,
                                    std::vector<block_key> keys) -> awaitable<result<std::unique_ptr<block_reader>>> {
      auto opened = co_await s.async_open_read(ns, std::move(layout), std::move(keys), as_result);
      if (!opened) co_return opened.error();
      co_return std::make_unique<reader>(std::move(*opened), std::move(d), std::move(done_with));
    };
    cokv::detail::run_as_operation(
        get_executor(), open(*staged_, device_, done_with_, ns, std::move(layout), std::move(keys)), std::move(h));
  }
  void do_remove(namespace_id ns, block_key key, done_handler h) override {
    staged_->async_remove(ns, key, std::move(h));
  }
  void do_layout(namespace_id ns, block_key key, layout_handler h) override {
    staged_->async_layout(ns, key, std::move(h));
  }
  void do_settle(done_handler h) override { staged_->async_settle(std::move(h)); }

  std::unique_ptr<store> staged_;
  device device_;
  watched done_with_ = std::make_shared<std::vector<buffer>>();  // the first ones, as they were left
  bool stable_ = true;
};

}  // namespace cokv::test
