// A file as a sink: what is put is written at its offset, into the system's cache; a commit syncs it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cokv/kvstream/transfer.hpp"
#include "cokv/runtime/file.hpp"
#include "cokv/runtime/result.hpp"

namespace cokv::bench {

class file_window final : public detail::sink_backend {
 public:
  file_window(file f, std::uint64_t size) : file_(std::move(f)), size_(size) {}

  static awaitable<sink> open(std::string path, std::uint64_t size) {
    auto& files = file_system::of(co_await asio::this_coro::executor);
    file f = co_await files.async_open(path, open_mode::create, asio::deferred);
    co_return sink(std::make_shared<file_window>(std::move(f), size));
  }

  asio::any_io_executor get_executor() const override { return file_.get_executor(); }
  std::uint64_t size() const override { return size_; }
  completion_level reach() const override { return completion_level::visible; }

  awaitable<error_code> put(std::uint64_t offset, std::vector<buffer> pieces, event begin, completion_level) override {
    if (!begin.ready())
      if (auto r = co_await begin.async_wait(as_result); !r) co_return r.error();
    for (const auto& piece : pieces) {
      const asio::const_buffer bytes(piece.data(), piece.size());
      if (auto r = co_await file_.async_write_at(offset, bytes, as_result); !r) co_return r.error();
      offset += piece.size();
    }
    co_return error_code();
  }

  awaitable<error_code> commit() override {
    auto r = co_await file_.async_sync(as_result);
    co_return r ? error_code() : r.error();
  }

 private:
  file file_;
  std::uint64_t size_;
};

}  // namespace cokv::bench
