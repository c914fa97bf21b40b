#include "http/serve.hpp"

#include <spdlog/spdlog.h>

#include <boost/asio/signal_set.hpp>
#include <csignal>

#include "cokv/runtime/error.hpp"

namespace cokv::http {

awaitable<void> serve_until_signalled(server& s, std::string_view name, std::ostream& out, duration grace,
                                      std::function<void()> reload) {
  return serve_until_signalled(served_by{s.local_endpoint(), s.secure(), [&s] { return s.run(); },
                                         [&s, name](duration left) { drain(s, name, left); }},
                               name, out, grace, std::move(reload));
}

void drain(server& s, std::string_view name, duration left) {
  if (left > duration(0)) spdlog::info("{}: {} requests in flight", name, s.requests_running());
  s.drain(left);
}

awaitable<void> serve_until_signalled(served_by s, std::string_view name, std::ostream& out, duration grace,
                                      std::function<void()> reload) {
  auto ex = co_await asio::this_coro::executor;
  asio::signal_set signals(ex, SIGINT, SIGTERM), hangups(ex, SIGHUP);  // before the line that tells others to go ahead
  out << name << ": listening on " << (s.secure ? "https://" : "http://") << s.at.to_string() << std::endl;

  auto ended = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    group.spawn([&]() -> awaitable<void> {
      co_await signals.async_wait(asio::use_awaitable);
      spdlog::info("{}: draining", name);
      s.drain(grace);
      co_await signals.async_wait(asio::use_awaitable);
      s.drain(duration(0));
    });
    group.spawn([&]() -> awaitable<void> {
      for (;;) {
        co_await hangups.async_wait(asio::use_awaitable);
        try {
          if (reload) reload();
          if (reload) spdlog::info("{}: what its files say was read again", name);
        } catch (const config_error& e) {
          spdlog::error("{}: {}; what was read before goes on", name, e.what());
        }
      }
    });
    co_await s.run();
    group.cancel();
  });
  if (!ended && ended.error() != asio::error::operation_aborted)
    throw boost::system::system_error(ended.error(), std::string(name));
}

tls_context load_tls(const std::string& certificate_file, const std::string& key_file) {
  if (certificate_file.empty() && key_file.empty()) return {};
  if (certificate_file.empty() || key_file.empty()) throw config_error("--tls-cert and --tls-key go together");
  try {
    return tls_context::server(certificate_file, key_file);
  } catch (const config_error& e) {
    throw config_error("--tls-cert, --tls-key: " + std::string(e.what()));
  }
}

}  // namespace cokv::http
