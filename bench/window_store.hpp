// A store that only takes: blocks go into a window of a peer, one behind the other and round again, as an engine that
// streams its KV to another worker sends them.
#pragma once

#include <utility>

#include "cokv/kvstream/store.hpp"
#include "cokv/kvstream/transfer.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/error.hpp"

namespace cokv::bench {

class window_store final : public store {
 public:
  explicit window_store(sink to) : store(to.get_executor()), to_(std::move(to)) {}

  store_info info() const override { return {.kind = "window", .limit_bytes = to_.size()}; }

 private:
  class writer final : public block_writer {
   public:
    writer(sink to, block_layout layout, std::size_t blocks, std::uint64_t at)
        : block_writer(to.get_executor()), to_(std::move(to)), layout_(std::move(layout)), blocks_(blocks), at_(at) {}

   private:
    void do_write(std::uint32_t layer, std::vector<buffer> segments, done_handler handler) override {
      auto at = at_;
      for (std::uint32_t l = 0; l < layer; ++l) at += layout_.segments[l] * blocks_;
      // The coroutine's own handle on the sink: a writer may be gone before its last put is.
      auto body = [](sink to, std::uint64_t at, std::vector<buffer> pieces) -> awaitable<error_code> {
        co_return co_await to.backend()->put(at, std::move(pieces), {});
      };
      detail::run_as_operation(get_executor(), body(to_, at, std::move(segments)), std::move(handler));
    }
    void do_commit(done_handler handler) override {
      auto body = []() -> awaitable<error_code> { co_return error_code(); };  // each put was verified over there
      detail::run_as_operation(get_executor(), body(), std::move(handler));
    }

    sink to_;
    block_layout layout_;
    std::size_t blocks_;
    std::uint64_t at_;
  };

  template <class T, class Handler>
  void answer(result<T> r, Handler handler) {
    auto body = [](result<T> given) -> awaitable<result<T>> { co_return std::move(given); };
    detail::run_as_operation(get_executor(), body(std::move(r)), std::move(handler));
  }

  void do_match(namespace_id, std::vector<block_key>, match_options, count_handler handler) override {
    answer(result<std::size_t>(0), std::move(handler));
  }
  void do_open_write(namespace_id, block_layout layout, std::vector<block_key> keys, write_options,
                     writer_handler handler) override {
    const auto bytes = layout.bytes() * keys.size();
    if (bytes > to_.size()) return answer(result<std::unique_ptr<block_writer>>(errc::too_large), std::move(handler));
    if (bytes > to_.size() - next_) next_ = 0;
    auto made = std::make_unique<writer>(to_, std::move(layout), keys.size(), std::exchange(next_, next_ + bytes));
    answer(result<std::unique_ptr<block_writer>>(std::move(made)), std::move(handler));
  }
  void do_open_read(namespace_id, block_layout, std::vector<block_key>, reader_handler handler) override {
    answer(result<std::unique_ptr<block_reader>>(errc::unsupported), std::move(handler));
  }
  void do_remove(namespace_id, block_key, done_handler handler) override {
    auto body = []() -> awaitable<error_code> { co_return errc::not_found; };
    detail::run_as_operation(get_executor(), body(), std::move(handler));
  }

  sink to_;
  std::uint64_t next_ = 0;
};

}  // namespace cokv::bench
