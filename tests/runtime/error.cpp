#include "cokv/runtime/error.hpp"

#include <doctest/doctest.h>

#include <set>

using cokv::errc;

TEST_CASE("every cokv error has its own text") {
  std::set<std::string> texts;
  for (int value = 1; value <= static_cast<int>(errc::unavailable); ++value)
    texts.insert(make_error_code(static_cast<errc>(value)).message());
  CHECK(texts.size() == static_cast<std::size_t>(errc::unavailable));
  CHECK(texts.count("unknown cokv error") == 0);
}

TEST_CASE("cokv errors match the portable conditions they mean") {
  CHECK(make_error_code(errc::deadline) == boost::system::errc::timed_out);
  CHECK(make_error_code(errc::out_of_memory) == boost::system::errc::not_enough_memory);
  CHECK(make_error_code(errc::digest_mismatch) == errc::digest_mismatch);
}
