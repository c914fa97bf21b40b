#include "cokv/kvstream/http_store.hpp"

#include <atomic>
#include <boost/asio/ip/address.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>

#include "cokv/runtime/detail/run_as_operation.hpp"
#include "store/http_remote.hpp"

namespace cokv {
namespace {

namespace json = boost::json;
using detail::error_of;
using detail::http_client;
using detail::http_remote;
using detail::kv_target;
using detail::number_in;

std::string keys_json(const std::vector<block_key>& keys) {
  std::string out = "{\"keys\":[";
  out.reserve(16 + keys.size() * 67);
  for (const auto& key : keys) {
    if (out.back() != '[') out += ',';
    out.append("\"").append(key.hex()).append("\"");
  }
  return out += "]}";
}

// A number for each exchange: an answer that belongs to another one is refused.
std::uint64_t next_generation() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

}  // namespace

namespace detail {

result<std::uint64_t> number_in(std::string_view text, std::string_view name) {
  error_code ec;
  const auto value = json::parse(json::string_view(text.data(), text.size()), ec);
  if (ec || !value.is_object()) return errc::protocol;
  const auto* found = value.as_object().if_contains(json::string_view(name.data(), name.size()));
  if (!found) return errc::protocol;
  const auto number = found->to_number<std::uint64_t>(ec);
  if (ec) return errc::protocol;
  return number;
}

// Where it lies, if the server lends it; else its bytes.
awaitable<result<std::unique_ptr<block_reader>>> open_reader(std::shared_ptr<http_remote> remote, stream_begin about) {
  co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
  if (remote->lent && remote->lent->usable()) {
    auto reader = co_await open_places_reader(remote, about);
    if (reader || reader.error() == asio::error::operation_aborted) co_return reader;
  }
  co_return co_await open_http_reader(std::move(remote), std::move(about));
}

void http_remote::look_at(const http_head& answer) const {
  if (!lent) return;
  const auto field = answer.fields["Cokv-Memory"];
  if (!field.empty()) lent->offered({field.data(), field.size()});
}

}  // namespace detail

http_store::http_store(asio::any_io_executor ex, std::string_view url, http_store_options options)
    : store(ex), state_(std::make_shared<http_remote>()) {
  auto at = detail::parse_http_url(url);
  if (!at)
    throw config_error("remote cache " + std::string(url) + ": " +
                       (at.error() == errc::unsupported ? "only http://, https:// and unix:// are supported"
                                                        : "not http://HOST:PORT, https://HOST:PORT or unix:///PATH"));
  for (const unsigned char c : options.api_key)
    if (c < 0x21 || c > 0x7e) throw config_error("remote cache: the API key holds a character that can't be sent");
  tls_context tls;
  if (at->secure) tls = tls_context::client({.ca_file = options.ca_file});
  state_->max_blocks = options.max_blocks;
  state_->digest = options.digest;
  const detail::http_client_options how{.max_connections = options.max_connections,
                                        .connect = options.connect,
                                        .first_byte = options.first_byte,
                                        .idle = options.idle,
                                        .keep_alive = options.keep_alive,
                                        .back_off_min = options.back_off_min,
                                        .back_off_max = options.back_off_max};
  // A server names a socket on its own machine, to which we would send the API key: one that is reached over a network is
  // not believed.
  const bool here = at->on_this_machine(), local = at->is_local();
  state_->client = std::make_shared<http_client>(ex, std::move(*at), options.api_key, how, std::move(tls));
  if (options.shared_memory && local) state_->lent = std::make_shared<detail::lent_memory>(state_->client);
  if (options.shared_memory && here && !local)
    state_->lent = std::make_shared<detail::lent_memory>([ex, key = options.api_key, how](const std::string& path) {
      return std::make_shared<http_client>(ex, detail::http_url::local(path), key, how);
    });
  state_->counters.kind = "http";
}

bool http_store::on_this_machine(std::string_view url) {
  const auto at = detail::parse_http_url(url);
  return at && at->on_this_machine();
}

http_store::~http_store() {
  state_->client->close();
  if (state_->lent) state_->lent->close();
}

store_info http_store::info() const { return state_->counters; }

void http_store::do_match(namespace_id ns, std::vector<block_key> keys, match_options options, count_handler handler) {
  static constexpr auto match = [](std::shared_ptr<http_remote> s, namespace_id ns, std::vector<block_key> keys,
                                   bool refresh) -> awaitable<result<std::size_t>> {
    co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
    if (keys.empty()) co_return std::size_t(0);
    if (keys.size() > s->max_blocks) co_return errc::too_large;
    auto reply = co_await s->client->exchange({.method = "POST",
                                               .target = kv_target(ns, refresh ? ":match?refresh=1" : ":match"),
                                               .fields = "Content-Type: application/json\r\n",
                                               .body = keys_json(keys)});
    if (!reply) co_return reply.error();
    if (reply->head.status != 200) co_return error_of(reply->head.status);
    s->look_at(reply->head);
    const auto matched = number_in(reply->body, "matched");
    if (!matched || *matched > keys.size()) co_return errc::protocol;
    s->counters.hits += *matched;
    s->counters.misses += keys.size() - *matched;
    co_return static_cast<std::size_t>(*matched);
  };
  detail::run_as_operation(get_executor(), match(state_, ns, std::move(keys), options.refresh), std::move(handler));
}

void http_store::do_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys, write_options options,
                               writer_handler handler) {
  detail::run_as_operation(
      get_executor(),
      detail::open_http_writer(
          state_, {ns, next_generation(), options.deferred, std::move(layout), std::move(keys), state_->digest},
          options),
      std::move(handler));
}

void http_store::do_open_read(namespace_id ns, block_layout layout, std::vector<block_key> keys,
                              reader_handler handler) {
  detail::run_as_operation(
      get_executor(),
      detail::open_reader(state_, {ns, next_generation(), false, std::move(layout), std::move(keys), state_->digest}),
      std::move(handler));
}

void http_store::do_remove(namespace_id ns, block_key key, done_handler handler) {
  static constexpr auto remove = [](std::shared_ptr<http_remote> s, namespace_id ns,
                                    block_key key) -> awaitable<error_code> {
    co_await asio::this_coro::reset_cancellation_state(asio::enable_partial_cancellation());
    auto reply = co_await s->client->exchange({.method = "DELETE", .target = kv_target(ns, "/" + key.hex())});
    if (!reply) co_return reply.error();
    if (reply->head.status != 204) co_return error_of(reply->head.status);
    co_return error_code();
  };
  detail::run_as_operation(get_executor(), remove(state_, ns, key), std::move(handler));
}

}  // namespace cokv
