// What the CUDA backend promises on every machine: on fake_cuda in every build, and unchanged on a device (label gpu).
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "cokv/runtime/trace.hpp"
#include "support/cuda_machine.hpp"

using namespace cokv;
using namespace cokv::test;

TEST_CASE("cuda: bytes go to the device and come back; an event is ready when what is before it is done") {
  on_cuda([](cuda_machine& m) {
    auto s = m.device.make_stream({.name = "copies"}).value();
    const std::size_t n = 1 << 16;
    auto there = m.device.allocate(n).value();
    auto from = m.pinned(n, 3), back = m.pinned(n, 0);
    CHECK(there.kind() == memory_kind::device);
    gate held(s);
    CHECK(!s.copy(there, from));
    CHECK(!s.copy(back, there));
    const auto copied = s.record();
    m.context.poll();
    CHECK(!copied.ready());
    CHECK(s.in_flight() == 3);
    held.open();
    CHECK(!m.wait(copied));
    CHECK(copied.ready());
    CHECK(!copied.status());
    CHECK(all_are(back, 3));
    CHECK(s.in_flight() == 0);
  });
}

TEST_CASE("cuda: the loop finds out by polling, by sleeping, and under a plain io_context::run") {
  on_cuda([](cuda_machine& m) {
    auto s = m.device.make_stream().value();
    auto from = m.pinned(64, 1), to = m.pinned(64, 0);
    auto chain = [](stream s, buffer from, buffer to, int& done) -> awaitable<void> {
      for (int i = 0; i < 50; ++i) {
        CHECK(!s.copy(to, from));
        co_await s.record().async_wait();
        ++done;
      }
    };
    for (auto spin : {duration(0), duration(std::chrono::microseconds(50)), duration::max()}) {
      int done = 0;
      asio::co_spawn(m.context, chain(s, from, to, done), asio::detached);
      m.run({.spin = spin});
      CHECK(done == 50);
    }
    int done = 0;
    asio::co_spawn(m.context, chain(s, from, to, done), asio::detached);
    m.context.restart();
    m.context.run();
    CHECK(done == 50);
  });
}

TEST_CASE("cuda: an edge between streams waits for its point, not for what comes behind it") {
  on_cuda([](cuda_machine& m) {
    auto compute = m.device.make_stream().value(), copies = m.device.make_stream({.priority = -1}).value();
    auto from = m.pinned(64, 1), to = m.pinned(64, 0);
    auto middle = m.device.allocate(64).value();
    gate first(compute);
    CHECK(!compute.copy(middle, from));
    const auto computed = compute.record();
    gate second(compute);
    CHECK(!copies.wait(computed));
    CHECK(!copies.copy(to, middle));
    const auto copied = copies.record();
    first.open();
    CHECK(!m.wait(copied));  // while the second gate is closed, and no other host function runs
    CHECK(all_are(to, 1));
    CHECK(!compute.record().ready());
    CHECK(!copies.wait(copied));  // its own, and done
    CHECK(!copies.wait(copies.record()));
    second.open();
    CHECK(!m.wait(compute.record()));
  });
}

TEST_CASE("cuda: waiters of one stream complete in order, the first while the last is still to come") {
  on_cuda([](cuda_machine& m) {
    auto s = m.device.make_stream().value();
    auto from = m.pinned(64, 1), to = m.pinned(64, 0);
    CHECK(!s.copy(to, from));
    const auto layer = s.record();
    gate held(s);
    const auto last = s.record();
    std::vector<int> order;
    last.async_wait([&](error_code) { order.push_back(2); });
    layer.async_wait([&](error_code) {
      order.push_back(1);
      CHECK(!last.ready());
      held.open();
    });
    m.run();
    CHECK(order == std::vector<int>{1, 2});
  });
}

TEST_CASE("cuda: a batch of many small copies is one operation") {
  on_cuda([](cuda_machine& m) {
    auto s = m.device.make_stream().value();
    const std::size_t pieces = 300, piece = 96;
    auto from = m.pinned(pieces * piece, 0), to = m.pinned(pieces * piece, 0);
    auto there = m.device.allocate(pieces * piece).value();
    for (std::size_t i = 0; i < from.size(); ++i) from.data()[i] = std::byte(i * 7);
    std::vector<copy_op> out, back;
    for (std::size_t i = 0; i < pieces; ++i) {
      const auto other = (i * 37) % pieces;
      out.push_back({there.slice(other * piece, piece), from.slice(i * piece, piece)});
      back.push_back({to.slice(i * piece, piece), there.slice(other * piece, piece)});
    }
    out.push_back({there.slice(0, 0), from.slice(0, 0)});
    CHECK(!s.copy_batch(out));
    CHECK(!s.copy_batch(back));
    CHECK(s.in_flight() <= 2);
    CHECK(!m.wait(s.record()));
    CHECK(std::memcmp(from.data(), to.data(), from.size()) == 0);
    CHECK(!s.copy_batch({}));
    CHECK(!m.wait(s.record()));
  });
}

TEST_CASE("cuda: a copy between host memory holds nobody up and keeps the stream's order") {
  on_cuda([](cuda_machine& m) {
    auto s = m.device.make_stream().value();
    const std::size_t n = 4096, half = n / 2, piece = 128;
    auto from = m.pinned(n, 0), second = m.pinned(n, 0), third = m.pinned(n, 0), back = m.pinned(n, 0);
    auto mixed = m.pinned(n, 0), pieces = m.pinned(n, 0);
    auto shared = m.device.allocate(n, memory_kind::shared).value(), there = m.device.allocate(n).value();
    for (std::size_t i = 0; i < n; ++i) from.data()[i] = std::byte(i * 7 + i / 256);
    const std::vector<std::byte> expected(from.bytes().begin(), from.bytes().end());
    const auto as_expected = [&](const buffer& b) { return std::ranges::equal(b.bytes(), expected); };
    {
      gate held(s);
      CHECK(!s.copy(second, from));  // returns while the gate is closed
      const auto first = s.record();
      m.context.poll();
      CHECK(!first.ready());
      CHECK(all_are(second, 0));
      CHECK(!s.copy(third, second));
      CHECK(!s.copy(there, third));
      CHECK(!s.copy(shared, there));
      CHECK(!s.copy(back, shared));
      CHECK(!s.copy(second, mixed));  // zeros, behind who reads it
      const copy_op both[] = {{mixed.slice(0, half), back.slice(0, half)},
                              {mixed.slice(half, n - half - piece), there.slice(half, n - half - piece)},
                              {there.slice(0, 0), back.slice(0, 0)},
                              {mixed.slice(n - piece, piece), shared.slice(n - piece, piece)}};
      CHECK(!s.copy_batch(both));
      // More than were in flight before, and fewer than a device takes before it holds its callers up.
      for (std::size_t at = 0; at < n; at += piece)
        CHECK(!s.copy(pieces.slice(at, piece), mixed.slice(at, piece)));
      m.context.poll();
      CHECK(!first.ready());
      held.open();
    }
    CHECK(!m.wait(s.record()));
    CHECK(all_are(second, 0));
    for (auto& b : {third, shared, back, mixed, pieces}) CHECK(as_expected(b));
  });
}

TEST_CASE("cuda: memory in a stream's order is used at once and goes back while its last use is in flight") {
  on_cuda([](cuda_machine& m) {
    auto s = m.device.make_stream().value();
    auto from = m.pinned(4096, 5), to = m.pinned(4096, 0);
    for (int i = 0; i < 20; ++i) {
      auto scratch = s.allocate(4096).value();
      CHECK(scratch.kind() == memory_kind::device);
      CHECK(!s.copy(scratch, from));
      CHECK(!s.copy(to, scratch));
    }
    CHECK(!m.wait(s.record()));
    CHECK(all_are(to, 5));
    CHECK(s.allocate(std::size_t{1} << 50).error() == errc::out_of_memory);
    CHECK(!s.status());
  });
}

TEST_CASE("cuda: the bound on work in flight, and room when some of it is done") {
  on_cuda([](cuda_machine& m) {
    auto s = m.device.make_stream({.max_in_flight = 3}).value();
    auto from = m.pinned(64, 1), to = m.pinned(64, 0);
    gate held(s);
    CHECK(!s.copy(to, from));
    CHECK(!s.copy(to, from));
    CHECK(s.copy(to, from) == errc::queue_full);
    error_code room = errc::closed;
    s.async_room([&](error_code ec) {
      room = ec;
      CHECK(!s.copy(to, from));
    });
    m.context.poll();
    CHECK(room == errc::closed);
    held.open();
    m.run();
    CHECK(!room);
    CHECK(!m.wait(s.record()));
  });
}

TEST_CASE("cuda: a cancelled wait ends at once; the copy goes on and keeps its buffers") {
  on_cuda([](cuda_machine& m) {
    auto s = m.device.make_stream().value();
    auto to = m.pinned(64, 0);
    auto bytes = std::make_shared<buffer>(m.pinned(64, 9));
    const std::weak_ptr<void> watch = bytes;
    gate held(s);
    {
      auto* data = bytes->data();
      CHECK(!s.copy(to, buffer::adopt(data, 64, memory_kind::pinned, std::move(bytes))));
    }
    asio::cancellation_signal signal;
    error_code ended;
    s.record().async_wait(asio::bind_cancellation_slot(signal.slot(), [&](error_code ec) { ended = ec; }));
    signal.emit(asio::cancellation_type::total);
    m.context.poll();
    CHECK(ended == asio::error::operation_aborted);
    CHECK(!watch.expired());
    held.open();
    CHECK(!m.wait(s.record()));
    CHECK(all_are(to, 9));
    CHECK(watch.expired());
  });
}

TEST_CASE("cuda: buffers are free again also when nobody waits for their copy") {
  on_cuda([](cuda_machine& m) {
    auto s = m.device.make_stream().value();
    auto to = m.pinned(64, 0);
    auto returned = std::make_shared<std::function<void()>>();
    bool is_back = false;
    auto guard = asio::make_work_guard(m.context);
    *returned = [&] {
      is_back = true;
      guard.reset();
    };
    auto bytes = m.pinned(64, 9);
    auto owner = std::shared_ptr<void>(bytes.data(), [bytes, returned](void*) { (*returned)(); });
    CHECK(!s.copy(to, buffer::adopt(bytes.data(), 64, memory_kind::pinned, std::move(owner))));
    m.context.restart();
    m.context.run();  // ends when the guard is gone
    CHECK(is_back);
    CHECK(all_are(to, 9));
  });
}

TEST_CASE("cuda: pinned memory is allocated beside the loop") {
  on_cuda([](cuda_machine& m) {
    bool done = false;
    asio::co_spawn(
        m.context,
        [](device d, bool& done) -> awaitable<void> {
          auto b = co_await d.async_allocate(1 << 20, memory_kind::pinned);
          CHECK(b.kind() == memory_kind::pinned);
          CHECK(b.size() == 1 << 20);
          auto [ec, none] =
              co_await d.async_allocate(std::size_t{1} << 50, memory_kind::device, asio::as_tuple(asio::deferred));
          CHECK(ec == errc::out_of_memory);
          done = true;
        }(m.device, done),
        asio::detached);
    m.run();
    CHECK(done);
  });
}

TEST_CASE("cuda: handles may go, the context may go: what was enqueued is done, and its buffers stay until then") {
  on_cuda([](cuda_machine& m) {
    auto to = m.pinned(64, 0);
    auto bytes = std::make_shared<buffer>(m.pinned(64, 8));
    const std::weak_ptr<void> watch = bytes;
    std::optional<gate> held;
    std::thread later;
    {
      asio::io_context context{1};
      {
        auto device = open_device(context.get_executor(), "cuda:0").value();
        auto s = device.make_stream().value();
        held.emplace(s);
        auto* data = bytes->data();
        CHECK(!s.copy(to, buffer::adopt(data, 64, memory_kind::pinned, std::move(bytes))));
        s.record().async_wait([](error_code) { FAIL("called by a context that is gone"); });
      }
      context.poll();
      CHECK(!watch.expired());
      later = std::thread([&] {
        std::this_thread::yield();
        held->open();
      });
    }
    later.join();
    CHECK(watch.expired());
    CHECK(all_are(to, 8));
  });
}

TEST_CASE("cuda: copies leave spans with the device's times, in order") {
  on_cuda([](cuda_machine& m) {
    auto& recorder = trace::of(m.context.get_executor());
    recorder.enable();
    auto s = m.device.make_stream({.name = "copies"}).value();
    auto a = m.pinned(1 << 16, 1), b = m.pinned(1 << 16, 0);
    const auto before = recorder.now();
    for (int i = 0; i < 4; ++i) CHECK(!s.copy(b, a, "load"));
    CHECK(!m.wait(s.record()));
    const auto spans = recorder.spans("copies");
    REQUIRE(spans.size() == 4);
    for (std::size_t i = 0; i < spans.size(); ++i) {
      CHECK(spans[i].name == "load");
      CHECK(std::get<std::int64_t>(spans[i].args.at(0).value) == 1 << 16);
      CHECK(spans[i].start <= spans[i].end);
      if (i) CHECK(spans[i - 1].end <= spans[i].start + std::chrono::microseconds(1));
    }
    CHECK(spans[0].start > before - std::chrono::seconds(1));
  });
}

TEST_CASE("cuda: an arrow leads from a computation to the copy that waited for it") {
  on_cuda([](cuda_machine& m) {
    auto& recorder = trace::of(m.context.get_executor());
    recorder.enable();
    auto compute = m.device.make_stream({.name = "compute"}).value();
    auto copies = m.device.make_stream({.name = "copies"}).value();
    auto a = m.pinned(64, 1), b = m.pinned(64, 0);
    const buffer uses[] = {a};
    CHECK(!compute.launch_native("layer 0", uses, [](void*) {}));
    const auto computed = compute.record();
    CHECK(!compute.launch_native("layer 1", uses, [](void*) {}));
    CHECK(!copies.wait(computed));
    CHECK(!copies.copy(b, a, "layer 0"));
    CHECK(!m.wait(copies.record()));
    CHECK(!m.wait(compute.record()));
    const auto layers = recorder.spans("compute"), copied = recorder.spans("copies");
    REQUIRE(layers.size() == 2);
    REQUIRE(copied.size() == 1);
    REQUIRE(copied[0].after.size() == 1);
    CHECK(copied[0].after[0].line == layers[0].at.line);
    CHECK(copied[0].after[0].position == layers[0].at.position);
    CHECK(layers[1].at.position > layers[0].at.position);
  });
}
