// A store in memory that can be told to fail in every way a store may: slowly, for ever, with an error, with fewer
// blocks than it promised, with a block that does not verify. What it gives as good is what was written.
#pragma once

#include <map>
#include <random>

#include "cokv/kvstream/store.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/error.hpp"

namespace cokv::test {

struct faults {
  double error = 0;    // an operation fails with errc::unavailable
  double hang = 0;     // an operation never ends by itself
  double damaged = 0;  // a block of a read does not verify
  double lost = 0;     // a block that matched is gone when it is read
  duration slowest = std::chrono::microseconds(100);
  duration open_takes{};                // opening a read, on top
  duration patience = duration::max();  // a reader left unread for longer is cut off
  duration stubborn{};                  // reads take that long, can't be cancelled, and write until then
};

class fault_store final : public store {
 public:
  fault_store(asio::any_io_executor ex, std::uint64_t seed, faults f = {}) : store(ex), fault(f), random_(seed) {}

  store_info info() const override {
    store_info i;
    i.kind = "fault";
    i.blocks = kept.size();
    i.digest_failures = digest_failures;
    return i;
  }

  using block_bytes = std::vector<std::vector<std::byte>>;  // by layer
  std::map<block_key, block_bytes> kept;
  faults fault;
  std::uint64_t digest_failures = 0;
  int lose_block = -1, lose_at_layer = 0;  // of every read: this block is not there from this layer on
  int calls = 0;
  int at_once = 0, most_at_once = 0;
  int readers = 0;  // that there are

  bool chance(double p) { return p > 0 && std::uniform_real_distribution<>(0, 1)(random_) < p; }

  awaitable<error_code> trouble() {
    ++calls;
    struct count {
      fault_store& s;
      explicit count(fault_store& f) : s(f) { s.most_at_once = std::max(s.most_at_once, ++s.at_once); }
      ~count() { --s.at_once; }
    } in_flight{*this};
    auto& time = clock::of(co_await asio::this_coro::executor);
    if (chance(fault.hang)) co_await time.async_wait_for(duration::max(), asio::deferred);
    if (fault.slowest.count() == 0)
      co_await asio::post(asio::deferred);  // no time passes
    else
      co_await time.async_wait_for(
          duration(std::uniform_int_distribution<std::int64_t>(0, fault.slowest.count())(random_)), asio::deferred);
    co_return chance(fault.error) ? make_error_code(errc::unavailable) : error_code();
  }

 private:
  class writer final : public block_writer {
   public:
    writer(fault_store& s, block_layout layout, std::vector<block_key> keys)
        : block_writer(s.get_executor()), to_(s), keys_(std::move(keys)) {
      bytes_.assign(keys_.size(), block_bytes(layout.layers()));
    }

   private:
    void do_write(std::uint32_t layer, std::vector<buffer> segments, done_handler h) override {
      detail::run_as_operation(get_executor(), write(layer, std::move(segments)), std::move(h));
    }
    awaitable<error_code> write(std::uint32_t layer, std::vector<buffer> segments) {
      if (auto ec = co_await to_.trouble()) co_return ec;
      for (std::size_t i = 0; i < segments.size(); ++i) {
        auto b = segments[i].bytes();
        bytes_[i].at(layer).assign(b.begin(), b.end());
      }
      co_return error_code();
    }
    void do_commit(done_handler h) override { detail::run_as_operation(get_executor(), commit(), std::move(h)); }
    awaitable<error_code> commit() {
      if (auto ec = co_await to_.trouble()) co_return ec;
      for (std::size_t i = 0; i < keys_.size(); ++i) to_.kept.try_emplace(keys_[i], bytes_[i]);
      co_return error_code();
    }

    fault_store& to_;
    std::vector<block_key> keys_;
    std::vector<block_bytes> bytes_;
  };

  class reader final : public block_reader {
   public:
    reader(fault_store& s, std::vector<block_key> keys)
        : block_reader(s.get_executor()), from_(s), keys_(std::move(keys)), good_(keys_.size()) {
      ++s.readers;
      opened_ = clock::of(s.get_executor()).now();
      while (found_ < keys_.size() && s.kept.contains(keys_[found_])) ++found_;
    }
    ~reader() override { --from_.readers; }
    std::size_t found() const noexcept override { return found_; }

   private:
    void do_read(std::uint32_t layer, std::vector<buffer> into, count_handler h) override {
      detail::run_as_operation(get_executor(), read(layer, std::move(into)), std::move(h));
    }
    awaitable<result<std::size_t>> read(std::uint32_t layer, std::vector<buffer> into) {
      for (auto& b : into) std::ranges::fill(b.bytes(), std::byte{0xee});
      if (from_.fault.stubborn.count() > 0) {
        co_await asio::this_coro::reset_cancellation_state(asio::disable_cancellation());
        co_await clock::of(get_executor()).async_wait_for(from_.fault.stubborn, asio::deferred);
        for (auto& b : into) std::ranges::fill(b.bytes(), std::byte{0xed});
      } else if (auto ec = co_await from_.trouble()) {
        co_return ec;
      }
      if (!std::exchange(begun_, true) && clock::of(get_executor()).now() - opened_ > from_.fault.patience)
        co_return errc::unavailable;
      good_ = std::min(good_, into.size());
      for (std::size_t i = 0; i < good_; ++i) {
        auto it = from_.kept.find(keys_[i]);
        const bool gone = static_cast<int>(i) == from_.lose_block && static_cast<int>(layer) >= from_.lose_at_layer;
        if (gone || it == from_.kept.end() || from_.chance(from_.fault.lost)) {
          good_ = i;
        } else if (from_.chance(from_.fault.damaged)) {
          ++from_.digest_failures;
          good_ = i;
        } else {
          std::ranges::copy(it->second.at(layer), into[i].bytes().begin());
        }
      }
      co_return good_;
    }

    fault_store& from_;
    time_point opened_{};
    bool begun_ = false;
    std::vector<block_key> keys_;
    std::size_t good_;
    std::size_t found_ = 0;
  };

  void do_match(namespace_id, std::vector<block_key> keys, match_options, count_handler h) override {
    detail::run_as_operation(get_executor(), match(std::move(keys)), std::move(h));
  }
  awaitable<result<std::size_t>> match(std::vector<block_key> keys) {
    if (auto ec = co_await trouble()) co_return ec;
    std::size_t n = 0;
    while (n < keys.size() && kept.contains(keys[n])) ++n;
    co_return n;
  }
  void do_open_write(namespace_id, block_layout layout, std::vector<block_key> keys, write_options,
                     writer_handler h) override {
    detail::run_as_operation(get_executor(), open_write(std::move(layout), std::move(keys)), std::move(h));
  }
  awaitable<result<std::unique_ptr<block_writer>>> open_write(block_layout layout, std::vector<block_key> keys) {
    if (auto ec = co_await trouble()) co_return ec;
    co_return std::make_unique<writer>(*this, std::move(layout), std::move(keys));
  }
  void do_open_read(namespace_id, block_layout, std::vector<block_key> keys, reader_handler h) override {
    detail::run_as_operation(get_executor(), open_read(std::move(keys)), std::move(h));
  }
  awaitable<result<std::unique_ptr<block_reader>>> open_read(std::vector<block_key> keys) {
    if (auto ec = co_await trouble()) co_return ec;
    if (fault.open_takes.count() > 0)
      co_await clock::of(get_executor()).async_wait_for(fault.open_takes, asio::deferred);
    co_return std::make_unique<reader>(*this, std::move(keys));
  }
  void do_remove(namespace_id, block_key key, done_handler h) override {
    detail::run_as_operation(get_executor(), remove(key), std::move(h));
  }
  awaitable<error_code> remove(block_key key) {
    if (auto ec = co_await trouble()) co_return ec;
    co_return kept.erase(key) ? error_code() : make_error_code(errc::not_found);
  }

  std::mt19937_64 random_;
};

}  // namespace cokv::test
