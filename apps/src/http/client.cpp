#include "http/client.hpp"

#include <array>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "http/client_pool.hpp"

namespace cokv::http {

client::client(asio::any_io_executor ex, server_url at, client_options options)
    : pool_(std::make_shared<detail::client_pool>(std::move(ex), std::move(at), std::move(options))) {}

client::~client() {
  if (pool_) pool_->close();
}

client& client::operator=(client&& other) noexcept {
  if (this != &other) {
    if (pool_) pool_->close();
    pool_ = std::move(other.pool_);
  }
  return *this;
}

awaitable<result<reply>> client::ask(client_request r) {
  const auto pool = pool_;
  auto exchange = co_await pool->start(r);
  if (!exchange) co_return exchange.error();
  auto body = co_await (*exchange)->read_all(pool->options.reply_bytes);
  if (!body) co_return body.error();
  reply out{(*exchange)->code(), (*exchange)->fields(), std::move(*body)};
  (*exchange)->keep();
  co_return out;
}

awaitable<result<reply>> client::get(std::string target) { return ask({.target = std::move(target)}); }
awaitable<result<reply>> client::post(std::string target, std::string body) {
  return ask({.method = verb::post, .target = std::move(target), .body = std::move(body)});
}
awaitable<result<reply>> client::del(std::string target) {
  return ask({.method = verb::delete_, .target = std::move(target)});
}

awaitable<result<line_stream>> client::open_lines(client_request r) {
  const auto pool = pool_;
  auto exchange = co_await pool->start(r);
  if (!exchange) co_return exchange.error();
  line_stream out(std::move(*exchange), pool->options.line_bytes);
  if (out.code() / 100 != 2) {
    auto body = co_await out.exchange_->read_all(pool->options.reply_bytes);
    if (!body) co_return body.error();
    out.refusal_ = std::move(*body);
    out.over();
  }
  co_return out;
}

void client::close() { pool_->close(); }
const server_url& client::at() const noexcept { return pool_->at; }
std::size_t client::idle_connections() const noexcept { return pool_->idle.size(); }
std::size_t client::lent_connections() const noexcept { return pool_->lent.size() + pool_->connecting; }

line_stream::line_stream(std::unique_ptr<detail::client_exchange> e, std::size_t line_bytes)
    : code_(e->code()), fields_(e->fields()), line_bytes_(line_bytes), exchange_(std::move(e)) {}
line_stream::line_stream(line_stream&&) noexcept = default;
line_stream& line_stream::operator=(line_stream&&) noexcept = default;
line_stream::~line_stream() = default;

void line_stream::over() {
  exchange_->keep();
  exchange_.reset();
}

awaitable<result<std::optional<std::string>>> line_stream::next() {
  while (!ended_) {
    const auto end = ahead_.find('\n', searched_);
    if (end != ahead_.npos) {
      std::optional<std::string> line = ahead_.substr(given_, end - given_);
      given_ = searched_ = end + 1;
      co_return line;
    }
    ahead_.erase(0, std::exchange(given_, 0));
    searched_ = ahead_.size();
    if (!exchange_) {
      if (ahead_.empty()) co_return std::optional<std::string>();
      ended_ = errc::protocol;
      break;
    }
    std::array<char, 4 << 10> some;
    auto n = co_await exchange_->read_some(asio::buffer(some));
    if (!n)
      ended_ = n.error();
    else if (*n == 0)
      over();
    else
      ahead_.append(some.data(), *n);
    if (ahead_.size() > line_bytes_ && ahead_.find('\n', searched_) == ahead_.npos) ended_ = errc::too_large;
  }
  exchange_.reset();
  co_return ended_;
}

}  // namespace cokv::http
