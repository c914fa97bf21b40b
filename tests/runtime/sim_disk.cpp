#include "cokv/runtime/sim_disk.hpp"

#include "cokv/runtime/file.hpp"
#include "cokv/runtime/sim_node.hpp"
#include "support/co_test.hpp"
#include "support/enough.hpp"

using namespace cokv;
using namespace std::chrono_literals;

namespace {

constexpr auto tuple = asio::as_tuple(asio::deferred);

std::string text(const sim::disk& disk, const std::string& path) {
  auto bytes = disk.contents(path);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The careful way to replace a file.
awaitable<error_code> replace(asio::any_io_executor ex, std::string data) {
  auto& fs = file_system::of(ex);
  auto [ec, f] = co_await fs.async_open("d/new", open_mode::create, tuple);
  if (ec) co_return ec;
  if (auto [wec, n] = co_await f.async_write_at(0, asio::buffer(data), tuple); wec) co_return wec;
  if (auto [sec] = co_await f.async_sync(tuple); sec) co_return sec;
  if (auto [rec] = co_await fs.async_rename("d/new", "d/f", tuple); rec) co_return rec;
  auto [dec] = co_await fs.async_sync_directory("d", tuple);
  co_return dec;
}

}  // namespace

TEST_CASE("a file replaced by write, sync, rename, sync is the old or the new one after a crash, never a mixture") {
  int kept_old = 0, kept_new = 0;
  for (auto seed : test::seeds(500)) {
    INFO(test::replay_command(seed));
    sim_context context(seed);
    sim::node host(context, "host");
    std::string old_data(5000, 'o'), new_data(7000, 'n');
    bool first = false, second = false;
    auto body = [&](asio::any_io_executor ex) -> awaitable<void> {
      co_await file_system::of(ex).async_make_directories("d");
      CHECK(!co_await replace(ex, old_data));
      first = true;
      CHECK(!co_await replace(ex, new_data));
      second = true;
    };
    asio::any_io_executor ex = host.get_executor();
    asio::co_spawn(ex, body(ex), asio::detached);
    while (!first && context.step()) {
    }
    context.run_for(duration(static_cast<std::int64_t>(context.below(1'000'000))));
    host.kill();
    auto after = text(host.disk(), "d/f");
    CHECK((after == old_data || after == new_data));
    if (second) CHECK(after == new_data);
    kept_old += after == old_data;
    kept_new += after == new_data;
  }
  if (!test::one_seed()) {
    CHECK(kept_old >= test::enough(50));
    CHECK(kept_new >= test::enough(50));
  }
}

TEST_CASE("what was not synced is lost, kept or torn, and the tests of a store can tell") {
  int lost = 0, kept = 0, torn = 0;
  for (auto seed : test::seeds(500)) {
    INFO(test::replay_command(seed));
    sim_context context(seed);
    sim::node host(context, "host");
    asio::any_io_executor ex = host.get_executor();
    auto body = [](asio::any_io_executor ex) -> awaitable<void> {
      auto f = co_await file_system::of(ex).async_open("f", open_mode::create);
      co_await file_system::of(ex).async_sync_directory("");
      co_await f.async_write_at(0, asio::buffer(std::string(4096, 'x')));
    };
    asio::co_spawn(ex, body(ex), asio::detached);
    context.run();
    host.kill();
    auto after = text(host.disk(), "f");
    CHECK(after == std::string(after.size(), 'x'));
    CHECK(after.size() % 512 == 0);
    (after.empty() ? lost : after.size() == 4096 ? kept : torn)++;
  }
  if (!test::one_seed()) {
    CHECK(lost >= test::enough(50));
    CHECK(kept >= test::enough(50));
    CHECK(torn >= test::enough(20));
  }
}

TEST_CASE("a full disk stops a write part way and says so") {
  test::co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        auto& fs = file_system::of(ex);
        auto f = co_await fs.async_open("f", open_mode::create);
        std::string data(6000, 'x');
        CHECK(co_await f.async_write_at(0, asio::buffer(data)) == 6000);
        CHECK(fs.free_space("").value() == 4000);
        auto [ec, n] = co_await f.async_write_at(6000, asio::buffer(data), tuple);
        CHECK(ec == boost::system::errc::no_space_on_device);
        CHECK(n <= 6000);
        std::tie(ec, n) = co_await f.async_write_at(0, asio::buffer(data), tuple);  // takes no room
        CHECK((!ec || f.size().value() > 6000));
        co_await fs.async_remove("f");
        f = co_await fs.async_open("g", open_mode::create);
        CHECK(co_await f.async_write_at(0, asio::buffer(data)) == 6000);
      },
      {.real = false, .setup = [](sim_context& c) { sim::disk::of(c).faults.capacity = 10'000; }});
}

TEST_CASE("planned faults arrive as the system's errors") {
  int errors = 0;
  test::co_test(
      [&](asio::any_io_executor ex) -> awaitable<void> {
        auto& fs = file_system::of(ex);
        auto [oec, f] = co_await fs.async_open("f", open_mode::create, tuple);
        if (oec) {
          CHECK(oec == boost::system::errc::too_many_files_open);
          ++errors;
          co_return;
        }
        std::string data(1000, 'x');
        for (int i = 0; i < 20; ++i) {
          auto [ec, n] = co_await f.async_write_at(0, asio::buffer(data), tuple);
          if (ec) CHECK((ec == boost::system::errc::io_error || ec == boost::system::errc::no_space_on_device));
          auto [rec, rn] = co_await f.async_read_at(0, asio::buffer(data), tuple);
          if (rec) CHECK(rec == boost::system::errc::io_error);
          auto [sec] = co_await f.async_sync(tuple);
          if (sec) CHECK(sec == boost::system::errc::io_error);
          errors += ec || rec || sec;
        }
      },
      {.real = false, .seeds = 500, .setup = [](sim_context& c) {
         auto& f = sim::disk::of(c).faults;
         f.read_error = f.write_error = f.no_space = f.sync_error = f.open_error = 0.1;
       }});
  CHECK(errors > 0);
}

TEST_CASE("bits flip on the way in, on the way out and in place") {
  sim_context context(1);
  auto& disk = sim::disk::of(context);
  asio::any_io_executor ex = context.get_executor();
  std::string got(1000, ' ');
  auto body = [&](asio::any_io_executor ex) -> awaitable<void> {
    auto f = co_await file_system::of(ex).async_open("f", open_mode::create);
    co_await f.async_write_at(0, asio::buffer(std::string(1000, 'x')));
    disk.faults.flip_read = 1;
    co_await f.async_read_at(0, asio::buffer(got));
    CHECK(std::count(got.begin(), got.end(), 'x') == 999);
    disk.faults.flip_read = 0;
    co_await f.async_read_at(0, asio::buffer(got));
    CHECK(got == std::string(1000, 'x'));
    CHECK(disk.flip("f", 500, 0));
    CHECK(!disk.flip("f", 1000, 0));
    co_await f.async_read_at(0, asio::buffer(got));
    CHECK(got[500] == 'y');
    disk.faults.flip_write = 1;
    co_await f.async_write_at(0, asio::buffer(std::string(1000, 'z')));
    co_await f.async_read_at(0, asio::buffer(got));
    CHECK(std::count(got.begin(), got.end(), 'z') == 999);
  };
  bool finished = false;
  asio::co_spawn(ex, body(ex), [&](std::exception_ptr e) { finished = !e; });
  context.run();
  CHECK(finished);
}

TEST_CASE("files survive cancellation and destruction at every step") {
  auto body = [](asio::any_io_executor ex) -> awaitable<void> {
    co_await file_system::of(ex).async_make_directories("d", tuple);
    co_await replace(ex, "data");
  };
  test::cancel_at_every_step(body);
  test::destroy_at_every_step(body);
}
