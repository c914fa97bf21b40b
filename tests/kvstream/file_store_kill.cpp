// A process that writes blocks, replaces and removes them, and is killed at any moment: what it had been told is so is so
// when the folder is opened again. COKV_KILLS says how often (5).
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "block_versions.hpp"
#include "cokv/kvstream/file_store.hpp"
#include "cokv/runtime/error.hpp"
#include "support/remove_folder.hpp"
#include "support/store_contract.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

const namespace_id ns = namespace_id::of("m", geometry::attention(3, 2, 4, dtype::f32));
constexpr std::uint32_t writers = 6, keys_each = 20;

auto as_tuple() { return asio::as_tuple(asio::deferred); }

// What the parent knows of a key. A version is what the block's bytes are those of.
struct known {
  std::uint32_t acknowledged = 0;  // 0: none
  std::uint32_t tried = 0;
  bool removed = false;   // for certain
  bool removing = false;  // perhaps
};

struct word {
  char what;  // 't' a version is tried, 'a' it is there, 'd' a removal is tried, 'r' it is done
  std::uint32_t key, version;
};

void say(int to, word w) {
  if (::write(to, &w, sizeof w) != sizeof w) ::_exit(1);
}

awaitable<void> work(store& s, std::uint32_t first, std::vector<known> all, unsigned seed, int to) {
  std::mt19937 random(seed);
  for (;;) {
    const auto key = first + static_cast<std::uint32_t>(random() % keys_each);
    if (random() % 4 != 0) {
      const auto version = ++all[key].tried;
      say(to, {'t', key, version});
      if (auto ec = co_await write_version(s, ns, key, version)) ::_exit(2);
      say(to, {'a', key, version});
    } else {
      say(to, {'d', key, 0});
      auto [ec] = co_await s.async_remove(ns, contract_keys(key, 1)[0], as_tuple());
      if (ec && ec != errc::not_found) ::_exit(3);
      say(to, {'r', key, 0});
    }
  }
}

[[noreturn]] void live(const file_store_options& options, const std::vector<known>& all, unsigned seed, int to) {
  asio::io_context ctx(1);
  std::unique_ptr<file_store> held;
  file_store::async_open(ctx.get_executor(), options, [&](error_code ec, std::unique_ptr<file_store> s) {
    if (ec) ::_exit(4);
    held = std::move(s);
    for (std::uint32_t w = 0; w < writers; ++w)
      asio::co_spawn(ctx, work(*held, w * keys_each, all, seed + w, to), asio::detached);
  });
  ctx.run();
  ::_exit(5);
}

}  // namespace

TEST_CASE("file store: killed at any moment, what was acknowledged is there and right, and what was removed is not") {
  const char* wanted = std::getenv("COKV_KILLS");
  const int rounds = wanted ? std::atoi(wanted) : 5;
  const auto folder = std::filesystem::temp_directory_path() / ("cokv_file_kill_" + std::to_string(::getpid()));
  std::vector<known> all(writers * keys_each);
  std::mt19937 random(17);
  std::size_t checked = 0, away = 0, words = 0;
  for (int round = 0; round < rounds; ++round) {
    INFO("round ", round);
    file_store_options options{.directory = folder.string(), .limit_bytes = std::uint64_t{1} << 30};
    options.segment_bytes = round % 3 == 0 ? 0 : 500'000;
    options.direct = round % 2 != 0;
    if (round % 5 == 4) options.digest = digest_algorithm::none;
    int pipe[2];
    REQUIRE(::pipe(pipe) == 0);
    const auto child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) live(options, all, static_cast<unsigned>(random()), pipe[1]);
    ::close(pipe[1]);
    bool killed = false;
    word w{};
    for (auto left = 1 + random() % 1500; ::read(pipe[0], &w, sizeof w) == sizeof w; ++words) {
      auto& k = all[w.key];
      if (w.what == 't') k.tried = w.version, k.removed = false;
      if (w.what == 'a') k.acknowledged = w.version, k.removing = false;
      if (w.what == 'd') k.removing = true;
      if (w.what == 'r') k.removed = true, k.acknowledged = 0, k.removing = false;
      if (left > 0 && --left == 0) killed = ::kill(child, SIGKILL) == 0;  // and what it had said is read all the same
    }
    CHECK(killed);
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status));
    ::close(pipe[0]);
    co_test(
        [&](asio::any_io_executor ex) -> awaitable<void> {
          auto s = co_await file_store::async_open(ex, options);
          CHECK(s->info().digest_failures == 0);
          for (std::uint32_t key = 0; key < all.size(); ++key) {
            auto& k = all[key];
            const auto v = co_await version_of(*s, ns, key, std::max(k.acknowledged, 1u), k.tried);
            CAPTURE(key);
            CHECK(v != 0u);
            if (k.acknowledged != 0 && !k.removing) CHECK(v.has_value());
            if (k.removed) CHECK(!v.has_value());
            checked += v.has_value();
            away += k.removed;
            // From here on it is known.
            k.acknowledged = v.value_or(0);
            k.removed = !v.has_value();
            k.removing = false;
          }
          co_await s->async_settle();
        },
        {.seeds = 0});
  }
  remove_folder(folder);
  CHECK(checked > 0);
  MESSAGE(rounds, " kills, ", words, " words heard, ", checked, " blocks compared, ", away, " removed ones looked for");
}
