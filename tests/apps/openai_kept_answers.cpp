#include "openai/kept_answers.hpp"

#include <doctest/doctest.h>

#include <random>

using namespace cokv;
using namespace cokv::openai;
using namespace std::chrono_literals;

namespace {

answer_name name(std::string key, std::string holder = "ana", std::string body = "{}") {
  return {std::move(holder), std::move(key), "/v1/completions", body};
}

constexpr time_point start{};

struct client {
  explicit client(std::shared_ptr<kept_answer> a) : reader(std::move(a), [this] { ++told; }) {}
  std::string read() {
    std::string out(reader.ahead());
    reader.took(out.size());
    return out;
  }
  int told = 0;
  kept_answer::reader reader;
};

// One that ended.
std::shared_ptr<kept_answer> keep(kept_answers& book, const answer_name& n, std::string_view bytes,
                                  time_point now = start) {
  auto v = book.ask(n, now);
  REQUIRE(v.what == found::fresh);
  book.add(*v.answer, bytes);
  book.end(*v.answer, true, now);
  return v.answer;
}

}  // namespace

TEST_CASE("kept_answers: whoever asks, while it is made or after, has all of it from the first byte on") {
  kept_answers book({.retention = 10s});
  auto made = book.ask(name("k"), start);
  REQUIRE(made.what == found::fresh);
  client first(made.answer);
  CHECK(!made.answer->streams());
  made.answer->begin_events();
  book.add(*made.answer, "ab");
  CHECK(first.told == 2);  // of itself, too
  CHECK(first.read() == "ab");
  auto again = book.ask(name("k"), start + 1s);
  REQUIRE(again.what == found::here);
  CHECK(again.answer == made.answer);
  client second(again.answer);
  book.add(*made.answer, "c");
  CHECK(first.read() == "c");
  CHECK(second.read() == "abc");
  CHECK(made.answer->readers() == 2);
  CHECK(made.answer->visits() == 2);
  CHECK(book.making() == 1);
  book.end(*made.answer, true, start + 2s);
  CHECK(made.answer->over());
  CHECK(book.making() == 0);
  CHECK(book.kept() == 1);
  CHECK(book.bytes() == 3);
  CHECK(book.expire(start + 2s) == start + 12s);
  CHECK(client(book.ask(name("k"), start + 11s).answer).read() == "abc");
  CHECK(book.ask(name("k"), start + 12s).what == found::fresh);
  CHECK(book.kept() == 0);
  CHECK(second.read().empty());
}

TEST_CASE("kept_answers: a key stands for one request, of one holder") {
  kept_answers book;
  keep(book, name("k"), "a");
  CHECK(book.ask(name("k", "ana", "{ }"), start).what == found::other_request);
  CHECK(book.ask(name("k", "bo", "{ }"), start).what == found::fresh);
  CHECK(book.ask(name("k", "bo", "{}"), start).what == found::other_request);  // while it is made, too
  CHECK(book.ask(name("k"), start).what == found::here);
}

TEST_CASE(
    "kept_answers: what failed, was refused or is not wanted any more is not kept, and its readers have what there "
    "was") {
  kept_answers book;
  auto failed = book.ask(name("failed"), start).answer;
  client r(failed);
  book.add(*failed, "a");
  book.end(*failed, false, start);
  CHECK(r.read() == "a");
  CHECK(failed->over());
  CHECK(book.ask(name("failed"), start).what == found::fresh);

  auto refused = book.ask(name("refused"), start).answer;
  client s(refused);
  book.refuse(*refused, {.message = "no"});
  REQUIRE(refused->refusal());
  CHECK(refused->refusal()->message == "no");
  CHECK(s.told == 2);
  CHECK(book.ask(name("refused"), start).what == found::fresh);

  auto dropped = book.ask(name("dropped"), start).answer;
  book.drop(*dropped);
  auto next = book.ask(name("dropped"), start);
  REQUIRE(next.what == found::fresh);
  CHECK(next.answer != dropped);
  book.add(*dropped, "late"), book.end(*dropped, true, start);
  CHECK(book.ask(name("dropped"), start).answer == next.answer);
  book.end(*next.answer, true, start);
  book.end(*next.answer, false, start), book.refuse(*next.answer, {}), book.drop(*next.answer);  // too late
  CHECK(book.ask(name("dropped"), start).what == found::here);
  CHECK(!next.answer->refusal());
}

TEST_CASE("kept_answers: a reader may go at any point, and the next one has it all") {
  for (std::size_t goes = 0; goes <= 4; ++goes)
    for (std::size_t took = 0; took <= goes; ++took) {
      kept_answers book;
      auto a = book.ask(name("k"), start).answer;
      auto r = std::make_unique<client>(a);
      for (std::size_t i = 0; i <= 4; ++i) {
        if (i == goes) r.reset();
        if (r && i < took) r->reader.took(1);
        if (i < 4) book.add(*a, std::string(1, static_cast<char>('a' + i)));
      }
      CHECK(a->readers() == 0);
      book.end(*a, true, start);
      CHECK(client(book.ask(name("k"), start).answer).read() == "abcd");
    }
}

TEST_CASE("kept_answers: there are so many, of so many bytes, and the holder who has most makes room") {
  kept_answers book({.answers = 4, .bytes = 10'000});
  keep(book, name("1", "bo"), std::string(3000, 'b'));
  keep(book, name("1"), "a");
  keep(book, name("2"), "a");
  keep(book, name("3"), "a");
  CHECK(keep(book, name("4"), "a"));
  CHECK(book.ask(name("1", "bo"), start).what == found::fresh);  // 3,000 bytes weigh more than four of one: it went
  CHECK(book.kept() + book.making() == 4);
  CHECK(book.ask(name("2"), start).what == found::here);
  CHECK(book.ask(name("1"), start).what == found::fresh);  // the oldest one had gone for that
  CHECK(book.ask(name("2"), start).what == found::fresh);
  CHECK(book.ask(name("3"), start).what == found::fresh);
  CHECK(book.ask(name("4"), start).what == found::full);

  kept_answers small({.answers = 2});
  CHECK(small.ask(name("1"), start).what == found::fresh);
  auto second = small.ask(name("2"), start).answer;
  CHECK(small.ask(name("3"), start).what == found::full);
  CHECK(small.ask(name("1"), start).what == found::here);
  small.end(*second, true, start);
  CHECK(small.ask(name("3"), start).what == found::fresh);
}

TEST_CASE("kept_answers: ten thousand keys of one holder leave another's alone, and the book bounded") {
  kept_answers book({.answers = 1000, .bytes = 1 << 20});
  keep(book, name("k", "bo"), "mine");
  for (int i = 0; i < 10'000; ++i) {
    keep(book, name(std::to_string(i)), std::string(static_cast<std::size_t>(i % 3000), 'x'));
    REQUIRE(book.bytes() <= 1 << 20);
    REQUIRE(book.kept() <= 1000);
  }
  CHECK(book.ask(name("k", "bo"), start).what == found::here);
  CHECK(book.ask(name("9999"), start).what == found::here);
  CHECK(book.ask(name("0"), start).what == found::fresh);
}

TEST_CASE(
    "kept_answers: what is too large is passed on to those who read it, no faster than the slowest, and to nobody "
    "else") {
  kept_answers book({.answer_bytes = 10, .ahead = 4});
  auto a = book.ask(name("k"), start).answer;
  client slow(a), quick(a);
  book.add(*a, "0123456789");
  CHECK(!a->passing());
  book.add(*a, "ab");
  CHECK(a->passing());
  CHECK(book.ask(name("k"), start).what == found::passing);
  CHECK(quick.read() == "0123456789ab");
  CHECK(a->crowded());
  slow.reader.took(8);
  CHECK(!a->crowded());
  CHECK(book.bytes() <= 4);
  book.add(*a, "c");
  CHECK(a->crowded());
  CHECK(quick.read() == "c");
  CHECK(slow.read() == "89abc");
  CHECK(book.bytes() == 0);
  book.end(*a, true, start);
  CHECK(book.ask(name("k"), start).what == found::fresh);
}

TEST_CASE("kept_answers: an object that is too large comes whole to who waits for it; nobody's is dropped") {
  kept_answers book({.answer_bytes = 3});
  auto a = book.ask(name("k"), start).answer;
  {
    client r(a);
    book.add(*a, "{....}");
    book.end(*a, true, start);
    CHECK(r.read() == "{....}");
  }
  CHECK(book.ask(name("k"), start).what == found::fresh);
  auto b = book.ask(name("l"), start).answer;
  book.add(*b, "{....}");
  CHECK(b->passing());
  CHECK(!b->crowded());
}

TEST_CASE("kept_answers: those that are read count until their readers have gone") {
  kept_answers book({.bytes = 100});
  auto r = std::make_unique<client>(keep(book, name("1"), std::string(80, 'a')));
  auto b = book.ask(name("2"), start).answer;
  client other(b);
  book.add(*b, std::string(30, 'b'));
  CHECK(book.ask(name("1"), start).what == found::fresh);  // it had to go
  CHECK(b->passing());                                     // which did not help yet
  CHECK(r->read() == std::string(80, 'a'));
  r.reset();
  CHECK(other.read() == std::string(30, 'b'));
  CHECK(book.bytes() == 0);
}

TEST_CASE("kept_answers: whatever happens in whatever order, readers have whole prefixes and the counts are true") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 rng(seed);
    const auto below = [&](std::size_t n) { return rng() % n; };
    kept_answers book({.answers = 6, .bytes = 400, .answer_bytes = 120, .ahead = 20, .retention = 5s});
    struct made {
      std::shared_ptr<kept_answer> answer;
      std::string all;
    };
    struct reading {
      std::unique_ptr<client> of;
      made* what;
      std::string got;
    };
    std::list<made> all;
    std::list<reading> readers;
    auto now = start;
    for (int step = 0; step < 400; ++step) {
      now += duration(below(1'000'000'000));
      switch (below(6)) {
        case 0: {
          auto v = book.ask(name(std::to_string(below(8)), below(2) == 0 ? "ana" : "bo"), now);
          if (v.what == found::fresh) all.push_back({v.answer, {}});
          if (v.what != found::fresh && v.what != found::here) break;
          const auto of = std::ranges::find(all, v.answer, &made::answer);
          REQUIRE(of != all.end());
          readers.push_back({std::make_unique<client>(v.answer), &*of, {}});
          break;
        }
        case 1:
        case 2:
          for (auto& m : all)
            if (!m.answer->over() && !m.answer->crowded() && below(3) == 0) {
              const std::string more(below(30), static_cast<char>('a' + below(26)));
              book.add(*m.answer, more);
              m.all += more;
            }
          break;
        case 3:
          for (auto& r : readers) r.got += std::string(r.of->reader.ahead().substr(0, 7)), r.of->reader.took(7);
          break;
        case 4:
          if (!all.empty()) {
            auto& m = *std::next(all.begin(), static_cast<std::ptrdiff_t>(below(all.size())));
            switch (below(4)) {
              case 0:
                book.drop(*m.answer);
                break;
              case 1:
                book.refuse(*m.answer, {});
                break;
              default:
                book.end(*m.answer, below(4) != 0, now);
            }
          }
          break;
        default:
          if (!readers.empty() && below(3) == 0)
            readers.erase(std::next(readers.begin(), static_cast<std::ptrdiff_t>(below(readers.size()))));
      }
      (void)book.expire(now);
      REQUIRE(book.kept() + book.making() <= 6);
      for (auto& r : readers) {
        REQUIRE(r.what->all.starts_with(r.got));
        REQUIRE(r.what->all.ends_with(r.of->reader.ahead()));
        REQUIRE(r.got.size() + r.of->reader.ahead().size() == r.what->all.size());
      }
    }
    readers.clear();
    all.clear();
    (void)book.expire(now + 1h);
    CHECK(book.kept() == 0);
  }
}
