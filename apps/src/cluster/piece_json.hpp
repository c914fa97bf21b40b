// An answer's tokens as a decode worker tells them, a line each, and the line that ends them. Without that line an answer
// is not over, whatever became of the connection.
//
//     x.write(encode(piece{.index = 0, .what = generated}) + '\n');
//     x.write(encode(ending{}) + '\n');
//     result<line> heard = read_line(text);                  // std::variant<piece, ending>
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "cokv/engine/engine.hpp"

namespace cokv::cluster {

struct piece {
  std::uint32_t index = 0;  // from 0: an answer's n-th token, whoever decodes it
  generated what;
};

struct ending {
  error_code code = {};      // none: the answer is complete. Else one that error_name.hpp has a name for
  std::string message = {};  // of an error, for people; at most most_message_bytes of it are told
};
constexpr std::size_t most_message_bytes = 1024;

std::string encode(const piece& p);
std::string encode(const ending& e);

using line = std::variant<piece, ending>;
constexpr std::uint32_t most_line_logprobs = 1 << 10;
// errc::protocol for anything else.
result<line> read_line(std::string_view text);

}  // namespace cokv::cluster
