#include "cluster/loans.hpp"

#include <boost/json/serialize.hpp>
#include <map>

#include "cluster/loan.hpp"
#include "cokv/runtime/detail/background.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "http/json.hpp"
#include "random_id.hpp"

namespace cokv::cluster {
namespace json = boost::json;
namespace {

using http::status;

parsed<std::uint64_t> read_wish(std::string_view text) {
  const auto v = http::parse_json(text);
  if (!v) return v.error();
  fields f(*v, "");
  const auto bytes = f.number("bytes", std::numeric_limits<std::uint64_t>::max(), 1);
  if (auto wrong = f.end()) return *wrong;
  return bytes;
}

}  // namespace

struct loans::state {
  state(window_table w, device d, loan_options options)
      : windows(std::move(w)), where(std::move(d)), o(std::move(options)), tasks(windows.get_executor()) {}

  struct part {
    cokv::window window;
    bool held = false;
  };

  window_table windows;
  device where;
  loan_options o;
  std::map<std::string, part> parts;  // by id
  std::shared_ptr<std::uint64_t> lent = std::make_shared<std::uint64_t>(0);
  cokv::detail::background tasks;
};

loans::loans(window_table windows, device where, loan_options o)
    : state_(std::make_shared<state>(std::move(windows), std::move(where), std::move(o))) {}

loans::~loans() {
  state_->tasks.cancel();
  state_->parts.clear();
}

std::uint64_t loans::lent() const noexcept { return *state_->lent; }
std::size_t loans::count() const noexcept { return state_->parts.size(); }

void loans::route(http::server& s) {
  constexpr auto admin = static_cast<std::uint8_t>(http::right::admin);
  s.route(http::verb::get, "/v1/loans", [s = state_](http::exchange& x) { return tell(s, x); }, {.any_of = admin});
  s.route(http::verb::post, "/v1/loans", [s = state_](http::exchange& x) { return lend(s, x); },
          {.body_bytes = 4096, .any_of = admin, .body_types = {"application/json"}});
}

awaitable<void> loans::tell(std::shared_ptr<state> s, http::exchange& x) {
  const json::object told{{"bytes", s->o.limit}, {"free", s->o.limit - *s->lent}, {"loans", s->parts.size()}};
  co_await x.respond(status::ok, "application/json", json::serialize(told));
}

awaitable<void> loans::lend(std::shared_ptr<state> s, http::exchange& x) {
  auto body = co_await x.read_all();
  if (!body) co_return;
  const auto bytes = read_wish(*body);
  if (!bytes) co_return (void) co_await x.refuse(bytes.error());
  const auto left = s->o.limit - *s->lent;
  if (*bytes > left)
    co_return (void) co_await x.refuse(
        {status::insufficient_storage, "not so much memory is left to be lent", "bytes", "out_of_memory"});
  const http::problem not_now{status::service_unavailable, "it can't be lent now", {}, "unavailable"};
  if (s->parts.size() >= s->o.most) co_return (void) co_await x.refuse(not_now);
  // Counted, by pages, until nobody can touch it any more.
  constexpr std::uint64_t page = 4096;
  const auto taken = std::min(left, (*bytes + page - 1) / page * page);
  *s->lent += taken;
  auto counted = std::shared_ptr<void>(s->lent.get(), [lent = s->lent, taken](void*) { *lent -= taken; });
  const auto kind = s->where.name() == "cpu" ? memory_kind::shared : memory_kind::device;
  auto memory = co_await s->where.async_allocate(*bytes, kind, as_result);
  if (!memory) co_return (void) co_await x.refuse(not_now);
  struct owner {
    std::shared_ptr<void> counted;  // until the memory is gone
    buffer memory;
  };
  auto all = buffer::adopt(memory->data(), *bytes, memory->kind(), std::make_shared<owner>(std::move(counted), *memory),
                           memory->host_accessible());
  auto window = s->windows.expose({std::move(all)}, window_access::both);
  if (!window) co_return (void) co_await x.refuse(not_now);

  loan_terms terms{.id = random_id(), .life = s->o.life, .links = s->o.links(), .window = window->ref()};
  s->parts.emplace(terms.id, state::part{std::move(*window)});
  if (!s->tasks.spawn(expire(s, terms.id))) {
    s->parts.erase(terms.id);
    co_return (void) co_await x.refuse(not_now);
  }
  co_await x.respond(status::created, "application/json", json::serialize(to_json(terms)));
}

awaitable<void> loans::expire(std::shared_ptr<state> s, std::string id) {
  (void)co_await clock::of(s->windows.get_executor()).async_wait_for(s->o.patience, as_result);
  if (const auto found = s->parts.find(id); found != s->parts.end() && !found->second.held) s->parts.erase(found);
}

awaitable<void> loans::keep(peer_link from) {
  const auto s = state_;
  const auto found = s->parts.find(from.peer().name.substr(from.peer().name.find('/') + 1));
  if (found == s->parts.end() || found->second.held) co_return;
  found->second.held = true;
  struct on_exit {
    std::shared_ptr<state> s;
    std::string id;
    ~on_exit() { s->parts.erase(id); }
  } always{s, found->first};
  (void)co_await from.async_closed(as_result);
}

}  // namespace cokv::cluster
