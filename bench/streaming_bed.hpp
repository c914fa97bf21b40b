// A sequence's KV in some layout, a way out for it, and a device that computes as long as it is told: what the ablation of
// bench/ablation.cpp streams, and checks that it arrived.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bare_loops.hpp"
#include "cokv/kvstream/kv_streamer.hpp"
#include "cokv/kvstream/local_window.hpp"
#include "file_window.hpp"
#include "modelled_device.hpp"
#include "throughput.hpp"
#include "two_workers.hpp"

namespace cokv::bench {

struct streamed_model {
  std::string name;
  std::uint32_t layers, heads, head_size;
  std::uint32_t prompt;  // tokens, so many that their KV is more than 64 MiB
  std::uint32_t naive;   // of them, those that the slow ways stream: their rate is what is compared
};

struct spent {
  double wall = 0, cpu = 0;
};

template <class F>
spent clocked(F f) {
  const auto cpu = cpu_seconds();
  const auto start = steady::now();
  f();
  return {seconds(steady::now() - start).count(), cpu_seconds() - cpu};
}

// A sequence's KV in a layout, and where it is streamed to.
class streaming_bed {
 public:
  streaming_bed(const streamed_model& m, const std::string& layout, const std::string& where, std::uint32_t tokens,
                const std::string& directory)
      : shape(geometry::attention(m.layers, m.heads, m.head_size, dtype::f16)),
        prompt(m.prompt),
        steps(tokens),
        through{*staging_, kernels_} {
    const auto blocks = (prompt + steps + 15) / 16;
    const auto lay =
        layout == "ft" ? kv_layout::faster_transformer(shape, 1, blocks * 16) : kv_layout::paged(shape, blocks);
    for (std::uint32_t b = 0; b < lay.buffers(); ++b) {
      memory_.push_back(engine_.allocate(lay.bytes(b)).value());
      std::uint64_t x = b + 1;
      for (auto& byte : memory_.back().bytes()) byte = static_cast<std::byte>((x = x * 6364136223846793005u + 1) >> 56);
    }
    view_.emplace(lay, memory_);
    for (std::uint32_t b = 0; b < blocks; ++b) table_.push_back(b);
    bytes = slice(shape, {0, shape.layers()}, table_).tokens({0, prompt}).bytes();
    token_bytes = slice(shape, {0, shape.layers()}, table_).tokens({0, 1}).bytes();
    const auto size = bytes + steps * token_bytes;
    landing_ = engine_.allocate(size, landing_kind(where)).value();
    std::ranges::fill(landing_.bytes(), std::byte{0xdd});
    if (where == "local") {
      to_.emplace(local_window(landing_, engine_.make_stream({"copies"}).value()).to());
      bare = std::make_unique<bare_memory>(landing_);
    } else if (where == "file") {
      path_ = (std::filesystem::path(directory) / ("cokv_ablation." + std::to_string(::getpid()))).string();
      near_.get([](streaming_bed& b, std::uint64_t size) -> awaitable<void> {
        b.to_.emplace(co_await file_window::open(b.path_, size));
      }(*this, size));
      bare = std::make_unique<bare_file>(path_);
    } else {
      link_.emplace(near_, listening_at(where), std::vector{landing_});
      to_.emplace(link_->to());
      if (where.starts_with("tcp")) bare = std::make_unique<bare_tcp>(landing_);
      if (where.starts_with("shm")) bare = std::make_unique<bare_shared>(landing_);
    }
  }
  ~streaming_bed() {
    if (!path_.empty()) std::filesystem::remove(path_);
    near_.get([](streaming_bed& b) -> awaitable<void> {  // what belongs to the context goes on its thread
      b.to_.reset();
      co_return;
    }(*this));
  }

  // The first tokens as fragments, in the order in which a naive streamer takes them.
  fragments fragments_of(std::uint32_t tokens) const {
    fragments f{memory_, {}, 0};
    slice s(shape, {0, shape.layers()}, table_);
    s.tokens({0, tokens});
    s.for_each_fragment(view_->layout(), [&](std::uint32_t, std::size_t, extent e) { f.all.push_back(e); });
    f.bytes = s.bytes();
    return f;
  }

  struct times {
    spent prompt, decode;
  };

  // A prompt that computes for so long, then steps of so long; what streaming begins with is in the prompt's time.
  times stream(streaming_mode mode, std::uint32_t tokens, seconds compute, std::uint32_t decode, seconds step) {
    return near_.get([](streaming_bed& b, streaming_mode mode, std::uint32_t tokens, seconds compute,
                        std::uint32_t decode, seconds step) -> awaitable<times> {
      times t;
      kv_streamer_options o{.mode = mode, .transfers = {.in_flight = 128, .through = &b.through}};
      const auto layers = b.shape.layers();
      auto v =
          co_await with(kv_streamer(*b.to_, *b.view_, {b.table_, tokens}, o), [&](kv_streamer& out) -> awaitable<void> {
            auto cpu = cpu_seconds();
            auto start = steady::now();
            for (std::uint32_t l = 0; l < layers; ++l)
              co_await out.layer(l, compute.count() > 0 ? after(b.compute_.launch(compute / layers)) : event());
            co_await out.prompt_done();
            co_await out.settled();
            t.prompt = {seconds(steady::now() - start).count(), cpu_seconds() - cpu};
            cpu = cpu_seconds();
            start = steady::now();
            for (std::uint32_t i = 0; i < decode; ++i) {
              auto computed = b.compute_.launch(step);
              co_await out.token(after(computed));
              co_await computed.async_wait();
            }
            t.decode = {seconds(steady::now() - start).count(), cpu_seconds() - cpu};
            co_await out.settled();
          });
      must(!v.error(), "streaming");
      co_return t;
    }(*this, mode, tokens, compute, decode, step));
  }

  // The steps by themselves.
  spent decode_alone(std::uint32_t decode, seconds step) {
    return near_.get([](streaming_bed& b, std::uint32_t decode, seconds step) -> awaitable<spent> {
      const auto cpu = cpu_seconds();
      const auto start = steady::now();
      for (std::uint32_t i = 0; i < decode; ++i) co_await b.compute_.launch(step).async_wait();
      co_return spent{seconds(steady::now() - start).count(), cpu_seconds() - cpu};
    }(*this, decode, step));
  }

  // What lies there is what the slices say.
  void check() {
    std::vector<std::byte> there(landing_.size());
    if (path_.empty())
      std::ranges::copy(landing_.bytes(), there.begin());
    else
      std::ifstream(path_, std::ios::binary)
          .read(reinterpret_cast<char*>(there.data()), static_cast<std::streamsize>(there.size()));
    std::uint64_t at = 0;
    auto compare = [&](const slice& s) {
      s.for_each_extent(view_->layout(), [&](extent e) {
        must(std::memcmp(there.data() + at, memory_[e.buffer].data() + e.offset, e.size) == 0,
             "comparing what arrived");
        at += e.size;
      });
    };
    for (std::uint32_t l = 0; l < shape.layers(); ++l) compare(slice(shape, {l, 1}, table_).tokens({0, prompt}));
    for (std::uint32_t i = 0; i < steps; ++i)
      compare(slice(shape, {0, shape.layers()}, table_).tokens({prompt + i, 1}));
  }

 private:
  worker near_;
  modelled_device compute_{near_.executor()};
  device engine_ = open_device(near_.executor(), "cpu", {.threads = 1}).value();
  cokv::stream kernels_ = engine_.make_stream({"pack"}).value();
  std::optional<staging_pool> staging_{staging_pool::make(engine_, 1 << 20, 16).value()};
  std::vector<buffer> memory_;
  std::optional<kv_view> view_;
  std::vector<std::uint32_t> table_;
  buffer landing_;
  std::string path_;
  std::optional<linked> link_;
  std::optional<sink> to_;

 public:
  geometry shape;
  std::uint32_t prompt, steps;
  packing through;
  std::uint64_t bytes = 0, token_bytes = 0;
  std::unique_ptr<bare_loop> bare;
};

}  // namespace cokv::bench
