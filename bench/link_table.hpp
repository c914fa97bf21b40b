// What the benches of links have in common: their options, the memory that goes over, the table, and its rows as --json.
//
//     link_table table("tcp", "chunk", {{"raw", "by hand", true}, {"link", "link"}, {"digest", "with digests"}});
//     table.heading();
//     for (auto chunk : s.chunks()) {
//       for (int r = 0; r < s.repeat; ++r) table.add({timed(...), timed(...), timed(...)});
//       table.row(chunk);
//     }
//     table.write(s.json);
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cokv/kvstream/transfer_group.hpp"
#include "cokv/runtime/size.hpp"
#include "throughput.hpp"
#include "two_workers.hpp"

namespace cokv::bench {

struct link_settings {
  std::size_t bytes = 256 << 20, set = 64 << 20, least = 4 << 10, most = 16 << 20;
  int repeat = 7;
  std::string json;

  static void add_size(CLI::App& app, const char* flag, std::size_t& value, const char* text) {
    app.add_option_function<std::string>(flag, [&value](auto& s) { value = parse_size(s).value(); }, text);
  }
  void add_to(CLI::App& app) {
    add_size(app, "--bytes", bytes, "bytes a run");
    add_size(app, "--set", set, "bytes of each side's memory");
    add_size(app, "--from", least, "smallest");
    add_size(app, "--to", most, "largest");
    app.add_option("--repeat", repeat, "runs of each way, in turn")->check(CLI::PositiveNumber);
    app.add_option("--json", json, "also write the figures there");
  }
  std::vector<std::size_t> chunks() const {
    std::vector<std::size_t> out;
    for (auto chunk = least; chunk <= most; chunk *= 4) out.push_back(chunk);
    return out;
  }
};

inline void fill(const buffer& memory) {
  for (std::size_t i = 0; i < memory.size(); ++i) memory.data()[i] = static_cast<std::byte>(i * 2654435761u >> 24);
}

// All of memory in pieces of one size, in an order of its own: as blocks lie in a pool.
inline std::vector<buffer> scattered(const buffer& memory, std::size_t piece) {
  std::vector<buffer> out;
  for (std::size_t at = 0; at < memory.size(); at += piece) out.push_back(memory.slice(at, piece));
  std::ranges::shuffle(out, std::mt19937_64(piece));
  return out;
}

// All of it, round and round, chunk by chunk, to the same offsets of the sink.
inline awaitable<void> put_all(sink to, buffer from, std::size_t bytes, std::size_t chunk) {
  auto v = co_await with(transfer_group{to, {.in_flight = 128}}, [&](transfer_group& out) -> awaitable<void> {
    for (std::size_t sent = 0; sent < bytes; sent += chunk) {
      const auto at = sent % from.size();
      co_await out.flush(from.slice(at, chunk), at);
    }
  });
  if (v.error()) std::fprintf(stderr, "%s: ", v.error().message().c_str());
  must(!v.error(), "put");
}

// The pieces, round and round, one behind the other in the sink: so many a put.
inline awaitable<void> put_lists(sink to, const std::vector<buffer>& pieces, std::size_t bytes, std::size_t a_put) {
  auto put = [](sink into, std::uint64_t at, std::vector<buffer> list, permit) -> awaitable<error_code> {
    co_return co_await into.backend()->put(at, std::move(list), {});
  };
  semaphore turns(to.get_executor(), 16);
  const auto piece = pieces.front().size();
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    for (std::size_t sent = 0; sent < bytes; sent += a_put * piece) {
      auto turn = co_await turns.async_acquire();
      const auto first = pieces.begin() + static_cast<std::ptrdiff_t>(sent / piece % pieces.size());
      std::vector<buffer> list(first, first + static_cast<std::ptrdiff_t>(a_put));
      group.spawn(put(to, sent % (pieces.size() * piece), std::move(list), std::move(turn)));
    }
  });
  must(!v.error(), "put");
}

struct link_way {
  std::string key, title;
  bool bare = false;  // the loop by hand; of several the faster is what the others are compared with
};

class link_table {
 public:
  // `of` is what a row is: "chunk", "extent".
  link_table(std::string link, std::string of, std::vector<link_way> ways)
      : link_(std::move(link)), of_(std::move(of)), ways_(std::move(ways)) {}

  void heading() const {
    std::string line = "| " + of_ + " |", rule = "|---|", cpu;
    for (const auto& w : ways_) {
      line += " " + w.title + " |" + (w.bare ? "" : " of by hand |");
      rule += w.bare ? "---|" : "---|---|";
      cpu += (cpu.empty() ? "" : ", ") + w.title;
    }
    std::printf("%s CPU s a GB: %s |\n%s---|\n", line.c_str(), cpu.c_str(), rule.c_str());
  }

  // A run of each way.
  void add(std::vector<throughput> all) {
    rounds_.resize(ways_.size());
    for (std::size_t i = 0; i < all.size(); ++i) rounds_[i].push_back(all[i]);
  }

  // The medians of what was added since the last row.
  void row(std::size_t chunk) {
    std::vector<throughput> got;
    double by_hand = 0, its_cpu = 0;
    for (std::size_t i = 0; i < ways_.size(); ++i) {
      got.push_back(median(std::exchange(rounds_[i], {})));
      if (!ways_[i].bare || got[i].gb_s < by_hand) continue;
      by_hand = got[i].gb_s;
      its_cpu = got[i].cpu_s_gb;
    }
    std::string line = "| " + format_size(chunk) + " |", cpu;
    std::string row = "{\"link\": \"" + link_ + "\", \"chunk\": " + std::to_string(chunk) +
                      number("raw_gb_s", by_hand) + number("raw_cpu_s_gb", its_cpu);
    for (std::size_t i = 0; i < ways_.size(); ++i) {
      char text[60];
      std::snprintf(text, sizeof text, " %.2f GB/s |", got[i].gb_s);
      line += text;
      std::snprintf(text, sizeof text, "%s%.2f", cpu.empty() ? "" : ", ", got[i].cpu_s_gb);
      cpu += text;
      if (ways_[i].bare) continue;
      std::snprintf(text, sizeof text, " %.2f |", got[i].gb_s / by_hand);
      line += text;
      row += number(ways_[i].key + "_gb_s", got[i].gb_s) + number(ways_[i].key + "_cpu_s_gb", got[i].cpu_s_gb);
    }
    std::printf("%s %s |\n", line.c_str(), cpu.c_str());
    std::fflush(stdout);
    rows_.push_back(row + "}");
  }

  const std::vector<std::string>& rows() const { return rows_; }
  void write(const std::string& path) const { write(path, rows_); }

  static void write(const std::string& path, const std::vector<std::string>& rows) {
    if (path.empty()) return;
    std::ofstream out(path);
    for (std::size_t i = 0; i < rows.size(); ++i) out << (i == 0 ? "[\n  " : ",\n  ") << rows[i];
    out << "\n]\n";
  }

 private:
  static std::string number(const std::string& key, double value) {
    char text[100];
    std::snprintf(text, sizeof text, ", \"%s\": %.3f", key.c_str(), value);
    return text;
  }

  std::string link_, of_;
  std::vector<link_way> ways_;
  std::vector<std::vector<throughput>> rounds_;
  std::vector<std::string> rows_;
};

}  // namespace cokv::bench
