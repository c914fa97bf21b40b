#include "cokv/runtime/size.hpp"

#include <doctest/doctest.h>

using cokv::format_size;
using cokv::parse_size;

TEST_CASE("sizes are read with binary and decimal units, in any case") {
  CHECK(parse_size("0").value() == 0);
  CHECK(parse_size("1234").value() == 1234);
  CHECK(parse_size("4GiB").value() == 4ull << 30);
  CHECK(parse_size(" 512 mib ").value() == 512ull << 20);
  CHECK(parse_size("1.5GB").value() == 1'500'000'000);
  CHECK(parse_size("1.5KiB").value() == 1536);
  CHECK(parse_size("2TiB").value() == 2ull << 40);
  CHECK(parse_size("7kB").value() == 7000);
  CHECK(parse_size("9b").value() == 9);
  CHECK(parse_size("18446744073709551615").value() == ~0ull);
}

TEST_CASE("what is no size says why") {
  for (const char* text :
       {"", "  ", "-1", "GiB", "4GB2", "4Gi", "1.2.3MB", "x", "18446744073709551616", "99999999TiB", "1e30", "."}) {
    CAPTURE(text);
    auto size = parse_size(text);
    REQUIRE(!size);
    CHECK(size.error() == boost::system::errc::invalid_argument);
    CHECK(size.error().message().find("size") == 0);
  }
  CHECK(parse_size("4Gi").error().message().find("unknown unit") != std::string::npos);
}

TEST_CASE("sizes are written short and exact where they can be") {
  CHECK(format_size(0) == "0");
  CHECK(format_size(1000) == "1000");
  CHECK(format_size(4096) == "4KiB");
  CHECK(format_size(4ull << 30) == "4GiB");
  CHECK(format_size(1'500'000'000) == "1.40GiB");
  for (std::uint64_t bytes : {1ull << 20, 3ull << 30, 123ull}) CHECK(parse_size(format_size(bytes)).value() == bytes);
}
