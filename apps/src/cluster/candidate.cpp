#include "cluster/candidate.hpp"

#include <boost/json/serialize.hpp>
#include <set>

#include "cluster/worker_refusal.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "http/json.hpp"

namespace cokv::cluster {

candidate::candidate(asio::any_io_executor ex, std::string router, candidate_options options, http::client_options how)
    : ex_(std::move(ex)), router_(std::move(router)), options_(options), how_(std::move(how)) {}

http::client& candidate::client_of(const std::string& url) {
  auto found = clients_.find(url);
  if (found == clients_.end())
    found = clients_.emplace(url, http::client(ex_, http::parse_server_url(url).value(), how_)).first;
  return found->second;
}

void candidate::note(const std::string& url, const std::string& what) {
  if (std::exchange(problems_[url], what) != what && !what.empty() && on_problem) on_problem(url, what);
}

awaitable<candidate::result> candidate::round(std::vector<std::string> workers, std::uint64_t above) {
  promise_poll poll(router_, workers.size(), above);
  // Each question in time, all at once, and no longer than until it is `enough`.
  const auto all = [&](auto ask, auto over, auto enough) -> awaitable<void> {
    (void)co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
      for (const auto& url : workers)
        group.spawn([&, url]() -> awaitable<void> {
          const auto reply = co_await with_deadline(client_of(url).ask(ask()), options_.period);
          over(url, reply);
          if (enough()) group.cancel();
        });
      co_return;
    });
  };
  std::set<std::string> absent;
  co_await all([] { return http::client_request{.target = "/v1/epoch"}; },
               [&](const std::string& url, const cokv::result<http::reply>& r) {
                 const auto no = r ? why_no_worker(r->code) : std::nullopt;
                 if (no) note(url, *no);
                 if (no || (!r && r.error() == asio::error::connection_refused)) {
                   absent.insert(url);
                   return poll.absent();
                 }
                 if (!r) return;
                 const auto v = http::parse_json(r->body);
                 const auto told = r->code == 200 && v ? read_promise(*v) : parsed<told_promise>(http::problem{});
                 if (!told) return;
                 note(url, {});
                 poll.says(*told);
               },
               [&] { return poll.open(); });
  if (!poll.open()) co_return result{{}, poll.hopeless(), poll.wait()};
  // A promise that nothing comes of must not be in another one's way for long.
  const router_claim claim{poll.epoch(), router_, std::chrono::ceil<std::chrono::milliseconds>(2 * options_.period)};
  const auto body = boost::json::serialize(to_json(claim));
  std::erase_if(workers, [&](const std::string& url) { return absent.contains(url); });
  co_await all(
      [&] {
        return http::client_request{.method = http::verb::put, .target = "/v1/epoch", .body = body, .repeatable = true};
      },
      [&](const std::string&, const cokv::result<http::reply>& r) {
        if (r && r->code == 200) poll.granted();
        if (r && r->code == 409) poll.refused();
      },
      [&] { return poll.won() || poll.lost(); });
  if (!poll.won()) co_return result{};
  co_return result{claim.epoch, false, {}};
}

}  // namespace cokv::cluster
