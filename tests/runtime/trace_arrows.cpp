#include <doctest/doctest.h>

#include <boost/json.hpp>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "cokv/runtime/device.hpp"
#include "cokv/runtime/sim_context.hpp"
#include "cokv/runtime/trace.hpp"

using namespace cokv;
namespace json = boost::json;

namespace {

// A written trace, read again as a viewer does: threads by name, spans by thread, and arrows from span to span.
struct picture {
  struct box {
    std::string track, name;
    std::int64_t from, to;  // nanoseconds
  };
  struct arrow {
    box from, to;
  };
  std::string process;
  std::vector<std::string> tracks;  // from top to bottom
  std::vector<box> boxes;
  std::vector<arrow> arrows;

  explicit picture(const trace::recorder& recorder) {
    std::ostringstream out;
    recorder.write_perfetto(out);
    const json::value parsed = json::parse(out.str());
    std::map<std::int64_t, std::string> names;
    std::map<std::int64_t, std::int64_t> order;
    std::map<std::int64_t, json::object> starts, finishes;
    for (auto& v : parsed.at("traceEvents").as_array()) {
      const auto& e = v.as_object();
      const std::string phase(e.at("ph").as_string()), name(e.at("name").as_string());
      CHECK(e.at("pid").as_int64() == 1);
      const auto tid = e.at("tid").as_int64();
      if (name == "process_name" && phase == "M") process = e.at("args").at("name").as_string();
      if (name == "thread_name" && phase == "M") names[tid] = e.at("args").at("name").as_string();
      if (name == "thread_sort_index" && phase == "M") order[e.at("args").at("sort_index").as_int64()] = tid;
      if (phase == "X")
        boxes.push_back({names.at(tid), name, nanos(e.at("ts")), nanos(e.at("ts")) + nanos(e.at("dur"))});
      if (phase == "s") CHECK(starts.emplace(e.at("id").as_int64(), e).second);
      if (phase == "f") CHECK(finishes.emplace(e.at("id").as_int64(), e).second);
    }
    for (auto& [index, tid] : order) tracks.push_back(names.at(tid));
    CHECK(tracks.size() == names.size());
    CHECK(starts.size() == finishes.size());
    for (auto& [id, s] : starts) {
      REQUIRE(finishes.count(id));
      const auto& f = finishes.at(id);
      CHECK(f.at("bp").as_string() == "e");
      CHECK(s.at("cat") == f.at("cat"));
      CHECK(s.at("name") == f.at("name"));
      arrows.push_back({around(names.at(s.at("tid").as_int64()), nanos(s.at("ts"))),
                        around(names.at(f.at("tid").as_int64()), nanos(f.at("ts")))});
    }
  }

  bool arrow_from(const std::string& from, const std::string& to) const {
    return std::any_of(arrows.begin(), arrows.end(), [&](auto& a) { return a.from.name == from && a.to.name == to; });
  }

 private:
  static std::int64_t nanos(const json::value& micros) { return std::llround(micros.to_number<double>() * 1000); }

  // The innermost span of the track that is open at the time.
  box around(const std::string& track, std::int64_t at) const {
    const box* found = nullptr;
    for (auto& b : boxes)
      if (b.track == track && b.from <= at && (at < b.to || b.from == b.to) && (!found || b.from >= found->from))
        found = &b;
    REQUIRE_MESSAGE(found, "an arrow that begins or ends in no span, on ", track, " at ", at);
    return *found;
  }
};

trace::span stop(std::string track, std::string name, int from, int to, trace::place at,
                 std::vector<trace::place> after = {}) {
  using us = std::chrono::microseconds;
  return {std::move(track), std::move(name), time_point(us(from)), time_point(us(to)), {}, at, std::move(after)};
}

}  // namespace

TEST_CASE("trace: an arrow leads from the last span at or before a place to what waited for it" *
          doctest::skip(!trace::compiled)) {
  asio::io_context ctx(1);
  auto& r = trace::of(ctx.get_executor());
  r.enable();
  r.add(stop("a", "a1", 0, 10, {7, 1}));
  r.add(stop("a", "a3", 10, 20, {7, 3}));
  r.add(stop("a", "instant", 30, 30, {7, 4}));
  r.add(stop("b", "waited for 2", 20, 30, {8, 1}, {{7, 2}}));
  r.add(stop("b", "waited for 3", 30, 40, {8, 2}, {{7, 3}}));
  r.add(stop("b", "waited for 9", 40, 50, {8, 3}, {{7, 9}}));
  r.add(stop("c", "of two", 50, 60, {9, 1}, {{7, 1}, {8, 2}}));
  r.add(stop("c", "of none", 60, 70, {9, 2}, {{7, 0}, {12, 5}, {9, 1}}));
  const picture p(r);
  CHECK(p.process == "cokv");
  CHECK(p.arrows.size() == 5);
  CHECK(p.arrow_from("a1", "waited for 2"));
  CHECK(p.arrow_from("a3", "waited for 3"));
  CHECK(p.arrow_from("instant", "waited for 9"));
  CHECK(p.arrow_from("a1", "of two"));
  CHECK(p.arrow_from("waited for 3", "of two"));
}

TEST_CASE("trace: tracks stand in the order in which their streams were made, others behind them by name" *
          doctest::skip(!trace::compiled)) {
  for (int round = 0; round < 2; ++round) {
    asio::io_context ctx(1);
    auto& r = trace::of(ctx.get_executor());
    r.enable();
    r.add(stop("zebra", "z", 0, 1, {}));
    r.add(stop("ant", "a", 5, 6, {}));
    auto second = [&] { r.add(stop("x copies", "c", 2 * round, 2 * round + 1, {22, 1})); };
    if (round) second();
    r.add(stop("compute", "k", 1, 3, {21, 1}));
    r.add(stop("compute", "overlaps", 2, 4, {21, 2}));
    if (!round) second();
    CHECK(picture(r).tracks == std::vector<std::string>{"compute", "compute (2)", "x copies", "ant", "zebra"});
  }
}

TEST_CASE("trace: on cpu streams every copy that waited for a layer has an arrow from it, ready or not" *
          doctest::skip(!trace::compiled)) {
  asio::io_context ctx(1);
  auto ex = ctx.get_executor();
  auto& r = trace::of(ex);
  r.enable();
  auto dev = open_device(ex, "cpu", {.threads = 1}).value();
  auto copies = dev.make_stream({.name = "copies"}).value();
  auto compute = dev.make_stream({.name = "compute"}).value();
  auto from = buffer::host(4096), to = buffer::host(4096);
  for (int layer = 0; layer < 20; ++layer) {
    compute.launch("layer " + std::to_string(layer), [] {});
    copies.wait(compute.record());
    copies.wait(event());
    copies.copy(to, from, "copy " + std::to_string(layer));
  }
  copies.async_drain([](error_code ec) { CHECK(!ec); });
  ctx.run();
  copies.wait(compute.record());  // long ready
  copies.copy(to, from, "late");
  copies.copy(to, from, "behind late");
  copies.async_drain([](error_code ec) { CHECK(!ec); });
  ctx.restart();
  ctx.run();
  const picture p(r);
  CHECK(p.arrows.size() == 21);
  for (int layer = 0; layer < 20; ++layer)
    CHECK(p.arrow_from("layer " + std::to_string(layer), "copy " + std::to_string(layer)));
  CHECK(p.arrow_from("layer 19", "late"));
  for (auto& a : p.arrows) CHECK(a.from.to <= a.to.from);
  CHECK(p.tracks == std::vector<std::string>{"copies", "compute"});
}

TEST_CASE("trace: a simulated prefill shows each layer's copy under the next layer's compute, with its arrow" *
          doctest::skip(!trace::compiled)) {
  sim_context context(1);
  auto ex = context.get_executor();
  auto& r = trace::of(ex);
  r.enable();
  auto dev = open_device(ex, "sim:h100").value();
  auto compute = dev.make_stream({.name = "compute"}).value();
  auto copies = dev.make_stream({.name = "copies"}).value();
  constexpr std::size_t layers = 8, bytes = 1 << 20;
  auto kv = dev.allocate(layers * bytes).value();
  auto host = dev.allocate(layers * bytes, memory_kind::pinned).value();
  for (std::size_t layer = 0; layer < layers; ++layer) {
    compute.launch("layer " + std::to_string(layer), [] {}, {.flops = 1e11});
    copies.wait(compute.record());
    copies.copy(host.slice(layer * bytes, bytes), kv.slice(layer * bytes, bytes), "copy " + std::to_string(layer));
  }
  CHECK(context.run() == sim_context::outcome::done);
  const picture p(r);
  CHECK(p.process == "cokv");
  CHECK(p.tracks == std::vector<std::string>{"compute", "copies"});
  CHECK(p.arrows.size() == layers);
  auto box = [&](const std::string& name) {
    return *std::find_if(p.boxes.begin(), p.boxes.end(), [&](auto& b) { return b.name == name; });
  };
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const auto n = std::to_string(layer);
    CHECK(p.arrow_from("layer " + n, "copy " + n));
    CHECK(box("copy " + n).from >= box("layer " + n).to);
    if (layer + 1 < layers) {
      CHECK(box("copy " + n).from < box("layer " + std::to_string(layer + 1)).to);
      CHECK(box("copy " + n).to <= box("layer " + std::to_string(layer + 1)).to);
    }
  }
  const auto hidden = trace::overlap(r.spans("copies"), r.spans("compute"));
  CHECK(hidden == doctest::Approx(7.0 / 8));  // all but the last
}

TEST_CASE("trace: numbers of a viewer: microseconds with the nanoseconds behind the point" *
          doctest::skip(!trace::compiled)) {
  asio::io_context ctx(1);
  auto& r = trace::of(ctx.get_executor());
  r.enable();
  r.add({"t", "first", time_point(duration(1'000'000'000'001)), time_point(duration(1'000'000'000'001)), {}});
  r.add({"t", "second", time_point(duration(1'000'000'001'006)), time_point(duration(1'000'001'234'573)), {}});
  std::ostringstream out;
  r.write_perfetto(out);
  CHECK(out.str().find("\"ts\":1.005,\"name\":\"second\",\"dur\":1233.567") != std::string::npos);
}
