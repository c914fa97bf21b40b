// hiredis's reader and formatter, without its sockets. Replies are bounded in bytes, elements and depth before anything is
// allocated for them: a peer that lies about a length costs no more than it sends.
//
//     parser.feed(bytes);
//     while (auto reply = parser.next()) ...            // errc::protocol: nothing can follow
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "cokv/runtime/asio.hpp"
#include "store/redis/value.hpp"

struct redisReader;

namespace cokv::detail {

class redis_parser {
 public:
  static constexpr std::size_t max_elements = 1 << 17;  // of a reply, those of its arrays included

  // A string is at most so long.
  explicit redis_parser(std::size_t max_string);
  redis_parser(const redis_parser&) = delete;
  ~redis_parser();

  void feed(std::span<const char> bytes);
  // The oldest whole reply; none yet; or why there will be no more.
  std::optional<result<redis_value>> next();

  struct budget;

 private:
  struct free_reader {
    void operator()(redisReader* r) const noexcept;
  };
  std::size_t max_string_;
  std::unique_ptr<budget> budget_;
  std::unique_ptr<redisReader, free_reader> reader_;
  bool broken_ = false;
};

// What is written for a command.
class redis_bytes {
 public:
  explicit redis_bytes(const redis_command& command);

  std::span<const char> left() const noexcept { return {bytes_.get() + at_, size_ - at_}; }
  void consume(std::size_t n) noexcept { at_ += n; }

 private:
  struct free_bytes {
    void operator()(char* c) const noexcept;
  };
  std::unique_ptr<char, free_bytes> bytes_;
  std::size_t size_ = 0, at_ = 0;
};

}  // namespace cokv::detail
