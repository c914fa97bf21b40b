// Sizes as people write them on command lines and in tables: parse_size reads "4GiB", "512MiB", "1.5GB" or plain
// bytes, format_size writes them back. KiB, MiB, GiB and TiB are powers of 1024; kB, MB, GB and TB powers of 1000.
//
//     auto bytes = cokv::parse_size("4GiB");            // 4294967296
//     if (!bytes) print(bytes.error().message());       // "size: unknown unit, expected B, KiB, MiB, GiB, TiB, ..."
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cokv/runtime/asio.hpp"

namespace cokv {

// Errors say what is wrong with the text and compare equal to boost::system::errc::invalid_argument. A fraction is
// rounded down to whole bytes; spaces are allowed around the number and before the unit; units are case-insensitive.
result<std::uint64_t> parse_size(std::string_view text);

// The shortest form with a binary unit: "4GiB" when that is exact, else two decimals ("1.40GiB"), else plain bytes.
std::string format_size(std::uint64_t bytes);

}  // namespace cokv
