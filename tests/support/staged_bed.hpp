// A simulated device with little staging, for tests of what lies in front of it; and a store that takes its time, and
// whose commits say what a test wants.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cokv/kvstream/memory_store.hpp"
#include "cokv/runtime/clock.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/sim_device.hpp"
#include "support/device_memory_store.hpp"
#include "support/store_contract.hpp"

namespace cokv::test {

inline const namespace_id staged_ns = namespace_id::of("m", geometry::attention(3, 2, 4, dtype::f32));

// Staging buffers for so many keys of the contract's blocks.
inline store_staging contract_staging(const device& of, std::size_t keys_a_chunk, std::size_t buffers) {
  const auto largest = std::ranges::max(contract_layout().segments);
  return store_staging::make(of, {.buffer_bytes = keys_a_chunk * largest + 700, .buffers = buffers}).value();
}

struct staged_bed {
  device dev;
  std::shared_ptr<store> behind;
  store_staging staging;
  std::shared_ptr<staged_store> staged;  // takes memory of the device
  device_memory_store host;              // takes the host's, and moves it there

  staged_bed(device d, std::shared_ptr<store> s, std::size_t keys_a_chunk, std::size_t buffers)
      : dev(std::move(d)),
        behind(std::move(s)),
        staging(contract_staging(dev, keys_a_chunk, buffers)),
        staged(std::make_shared<staged_store>(behind, staging)),
        host(std::make_unique<staged_store>(behind, staging), dev) {}
  staged_bed(asio::any_io_executor ex, std::size_t keys_a_chunk, std::size_t buffers)
      : staged_bed(open_device(ex, "sim:h200").value(), std::make_shared<memory_store>(ex, memory_store_options{}),
                   keys_a_chunk, buffers) {}

  memory_store& memory() { return dynamic_cast<memory_store&>(*behind); }
};

inline sim::device& staged_gpu(const asio::any_io_executor& ex) {
  return sim::device::of(static_cast<sim_context&>(asio::query(ex, asio::execution::context)), "sim:h200");
}

// What a reader gives of one layer, compared.
inline awaitable<result<std::size_t>> read_layer(block_reader& reader, device& dev, std::uint32_t first,
                                                 std::size_t count, std::uint32_t layer) {
  auto into = device_segments(dev, count, contract_layout().segments[layer]);
  auto n = co_await reader.async_read(layer, into, as_result);
  CHECK(nobody_uses(into));
  for (std::size_t i = 0; n && i < *n; ++i) {
    const auto want = contract_segments(first + static_cast<std::uint32_t>(i), 1, layer)[0];
    CHECK(std::memcmp(into[i].data(), want.data(), want.size()) == 0);
  }
  co_return n;
}

// The last buffers go back by post.
inline awaitable<void> all_are_back(const store_staging& staging) {
  for (int i = 0; i < 20 && staging.available() < staging.buffers(); ++i) co_await asio::post(asio::deferred);
  CHECK(staging.available() == staging.buffers());
}

inline awaitable<error_code> write_layers(block_writer& writer, device& dev, std::uint32_t first, std::uint32_t count) {
  for (std::uint32_t layer = 0; layer < contract_layout().layers(); ++layer) {
    auto segments = device_copies(dev, contract_segments(first, count, layer));
    auto done = co_await writer.async_write(layer, segments, as_result);
    CHECK(nobody_uses(segments));
    if (!done) co_return done.error();
  }
  co_return error_code();
}

// A memory_store of which every write and read takes a fixed time.
class slow_store final : public store {
 public:
  slow_store(asio::any_io_executor ex, duration takes) : store(ex), takes(takes), blocks_(ex, {}) {}

  store_info info() const override { return blocks_.info(); }

  duration takes;
  std::map<int, error_code> commits = {};       // the error of the n-th writer's commit, from 0
  std::map<int, std::vector<bool>> keeps = {};  // and what it keeps all the same
  write_options asked = {};
  int writers = 0;

 private:
  class writer final : public block_writer {
   public:
    writer(slow_store& s, std::unique_ptr<block_writer> w, int n)
        : block_writer(s.get_executor()), in_(s), to_(std::move(w)), number_(n) {}
    std::size_t kept() const override {
      std::size_t n = 0;
      while (keeps(n)) ++n;
      return n;
    }
    bool keeps(std::size_t i) const override {
      const auto it = in_.keeps.find(number_);
      return it != in_.keeps.end() && i < it->second.size() && it->second[i];
    }

   private:
    void do_write(std::uint32_t layer, std::vector<buffer> segments, done_handler h) override {
      cokv::detail::run_as_operation(get_executor(), write(in_.takes, to_, layer, std::move(segments)), std::move(h));
    }
    static awaitable<error_code> write(duration takes, std::shared_ptr<block_writer> to, std::uint32_t layer,
                                       std::vector<buffer> segments) {
      co_await clock::of(to->get_executor()).async_wait_for(takes, asio::deferred);
      auto done = co_await to->async_write(layer, std::move(segments), as_result);
      co_return done ? error_code() : done.error();
    }
    void do_commit(done_handler h) override {
      if (!in_.commits.contains(number_)) return to_->async_commit(std::move(h));
      cokv::detail::run_as_operation(get_executor(), fail(in_.commits[number_]), std::move(h));
    }
    static awaitable<error_code> fail(error_code ec) { co_return ec; }

    slow_store& in_;
    std::shared_ptr<block_writer> to_;
    int number_;
  };

  class reader final : public block_reader {
   public:
    reader(slow_store& s, std::unique_ptr<block_reader> r)
        : block_reader(s.get_executor()), takes_(s.takes), from_(std::move(r)) {}
    std::size_t found() const noexcept override { return from_->found(); }

   private:
    void do_read(std::uint32_t layer, std::vector<buffer> into, count_handler h) override {
      cokv::detail::run_as_operation(get_executor(), read(takes_, from_, layer, std::move(into)), std::move(h));
    }
    static awaitable<result<std::size_t>> read(duration takes, std::shared_ptr<block_reader> from, std::uint32_t layer,
                                               std::vector<buffer> into) {
      co_await clock::of(from->get_executor()).async_wait_for(takes, asio::deferred);
      co_return co_await from->async_read(layer, std::move(into), as_result);
    }

    duration takes_;
    std::shared_ptr<block_reader> from_;
  };

  void do_match(namespace_id ns, std::vector<block_key> keys, match_options o, count_handler h) override {
    blocks_.async_match(ns, std::move(keys), o, std::move(h));
  }
  void do_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys, write_options o,
                     writer_handler h) override {
    static constexpr auto open = [](slow_store& s, namespace_id ns, block_layout layout, std::vector<block_key> keys,
                                    write_options o) -> awaitable<result<std::unique_ptr<block_writer>>> {
      auto opened = co_await s.blocks_.async_open_write(ns, std::move(layout), std::move(keys), o, as_result);
      if (!opened) co_return opened.error();
      s.asked = std::move(o);
      co_return std::make_unique<writer>(s, std::move(*opened), s.writers++);
    };
    cokv::detail::run_as_operation(get_executor(), open(*this, ns, std::move(layout), std::move(keys), std::move(o)),
                                   std::move(h));
  }
  void do_open_read(namespace_id ns, block_layout layout, std::vector<block_key> keys, reader_handler h) override {
    static constexpr auto open = [](slow_store& s, namespace_id ns, block_layout layout,
                                    std::vector<block_key> keys) -> awaitable<result<std::unique_ptr<block_reader>>> {
      auto opened = co_await s.blocks_.async_open_read(ns, std::move(layout), std::move(keys), as_result);
      if (!opened) co_return opened.error();
      co_return std::make_unique<reader>(s, std::move(*opened));
    };
    cokv::detail::run_as_operation(get_executor(), open(*this, ns, std::move(layout), std::move(keys)), std::move(h));
  }
  void do_remove(namespace_id ns, block_key key, done_handler h) override {
    blocks_.async_remove(ns, key, std::move(h));
  }

  memory_store blocks_;
};

}  // namespace cokv::test
