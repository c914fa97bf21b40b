#include "serve/joining.hpp"

#include <spdlog/spdlog.h>

#include <boost/json/serialize.hpp>

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/with.hpp"
#include "serve/key_file.hpp"

namespace cokv::serve {
namespace {

using namespace std::chrono_literals;

http::client router_of(const asio::any_io_executor& ex, const options& o, const std::string& url) {
  const auto at = http::parse_server_url(url);
  if (!at) throw config_error("--join: " + url + ": takes http://HOST:PORT or https://HOST:PORT");
  http::client_options how;
  how.first_byte = 1s;
  if (!o.join_key_file.empty()) how.api_key = first_key("--join-key-file", o.join_key_file);
  return http::client(ex, *at, how);
}

}  // namespace

std::string own_url(const options& o, const endpoint& listens) {
  const bool everywhere = listens.host == "0.0.0.0" || listens.host == "::";
  if (everywhere && o.advertise.empty())
    throw config_error("--advertise: has to say what others call this machine, since it listens on " +
                       listens.to_string());
  const endpoint called{o.advertise.empty() ? listens.host : o.advertise, listens.port};
  return (o.tls_certificate.empty() ? "http://" : "https://") + called.to_string();
}

joining::joining(const asio::any_io_executor& ex, const options& o, std::string own_url, std::string life)
    : own_(std::move(own_url)), life_(std::move(life)) {
  for (const auto& url : o.join) routers_.push_back(router_of(ex, o, url));
}

awaitable<void> joining::run() {
  auto v = co_await with(task_group{}, [this](task_group& group) {
    for (auto& router : routers_) group.spawn(tell(router));
  });
  if (v.error()) throw boost::system::system_error(v.error());
}

awaitable<void> joining::tell(http::client& router) {
  auto& time = clock::of(co_await asio::this_coro::executor);
  std::string before = "nothing";
  while (!leaving_) {
    ++saying_;
    const auto told = co_await router.post(
        "/v1/workers", boost::json::serialize(boost::json::object{{"url", boost::json::string(own_)},
                                                                  {"life", boost::json::string(life_)}}));
    --saying_;
    if (told && told->code == 409)
      co_return spdlog::warn("--join {}: it let this worker go, which joins no more", router.at().to_string());
    const auto now = !told               ? told.error().message()
                     : told->code == 204 ? std::string()
                                         : "status " + std::to_string(told->code);
    if (now != before && now.empty()) spdlog::info("{} is told that {} is here", router.at().to_string(), own_);
    if (now != before && !now.empty()) spdlog::warn("--join {}: {}; it is tried again", router.at().to_string(), now);
    before = now;
    co_await time.async_wait_for(now.empty() ? 2s : 500ms, asio::deferred);
  }
}

awaitable<void> joining::leave() {
  leaving_ = true;
  auto& time = clock::of(co_await asio::this_coro::executor);
  for (int tries = 0; saying_ > 0 && tries < 100; ++tries) co_await time.async_wait_for(10ms, asio::deferred);
  (void)co_await with(task_group{}, [this](task_group& group) {
    for (auto& router : routers_)
      group.spawn([this, &router]() -> awaitable<void> {
        (void)co_await with_deadline(router.del("/v1/workers?url=" + own_), 1s);
      });
  });
}

}  // namespace cokv::serve
