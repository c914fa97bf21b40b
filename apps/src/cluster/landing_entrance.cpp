#include "cluster/landing_entrance.hpp"

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "openai/engine_backend.hpp"

namespace cokv::cluster {

landing_entrance::landing_entrance(engine& e, link_door& door, window_table windows, entrance_options options)
    : engine_(e), door_(door), windows_(std::move(windows)), options_(std::move(options)) {}

// What holds a piece back until copies are as far as it: of the KV that it rests on, all but what the step computed that
// sampled it. The first one is told before any KV of it is here.
std::function<awaitable<void>(std::uint32_t)> landing_entrance::follow(generation_request& r, const std::string& id,
                                                                       std::uint32_t attempt) {
  const auto prompt = static_cast<std::uint32_t>(r.prompt.size());
  std::shared_ptr<answer_follower> f;
  // Of layers that are elsewhere there is nothing to copy.
  if (!engine_.pool().whole() || !engine_.running().part().whole()) return {};
  if (options_.cached)
    f = options_.cached->follow(r.salt);
  else if (options_.copies)
    f = options_.copies->follow(id, attempt, prompt);
  if (!f) return {};
  r.follower = f;
  return [f, prompt](std::uint32_t piece) -> awaitable<void> {
    if (piece > 0) co_await f->covered(prompt + piece - 1);
  };
}

awaitable<result<admitted>> landing_entrance::open(generation_request r, offer from, std::string id,
                                                   std::uint32_t attempt) {
  landing_options how{.id = std::move(id),
                      .attempt = attempt,
                      .life = options_.life,
                      .links = options_.links ? options_.links() : door_.urls(),
                      .converts = options_.converts,
                      .others = options_.others,
                      .patience = options_.patience,
                      .lease = options_.lease};
  auto covered = follow(r, how.id, attempt);
  auto opened = co_await landing::open(windows_, engine_, std::move(r), std::move(from), std::move(how));
  if (!opened) co_return opened.error();
  const auto l = *opened;
  admitted out{.ticket = l->ticket(),
               .answer = openai::answer_of(l->take_answer()),
               .run = [l, &door = door_] { return l->run(door); },
               .decodes = [l] { return l->decodes(); },
               .covered = std::move(covered)};
  co_return std::move(out);
}

awaitable<landing_entrance::copy> landing_entrance::find(const generation_request& r, lost_answer lost,
                                                         const std::string& id) {
  copy out;
  if (options_.cached) {
    const auto there = std::make_shared<cache_copies::found>(co_await options_.cached->find(r.prompt, r.salt));
    out.tokens = there->tokens;
    out.restore = [to = options_.cached, there](kv_room room) {
      return to->restore(std::move(*there), std::move(room));
    };
  } else if (options_.copies) {
    const auto there =
        std::make_shared<answer_copies::taken>(co_await options_.copies->take(id, std::move(lost), r.prompt));
    out.tokens = there->tokens;
    out.restore = [to = options_.copies, there](kv_room room) {
      return to->restore(std::move(*there), std::move(room));
    };
  }
  co_return out;
}

awaitable<result<admitted>> landing_entrance::resume(generation_request r, lost_answer lost, std::string id,
                                                     std::uint32_t attempt) {
  if (!engine_.running().part().whole()) co_return errc::not_found;
  const auto copy = co_await find(r, std::move(lost), id);
  if (copy.tokens == 0) co_return errc::not_found;
  auto covered = follow(r, id, attempt);
  const auto restored = copy.tokens;
  auto both = engine_.receive(std::move(r), restored);
  if (!both) co_return both.error();
  auto& [answer, to] = *both;
  auto room = co_await with_deadline(to.async_room(asio::deferred), options_.patience);
  error_code why = room ? error_code() : room.error();
  if (!why) why = co_await copy.restore(std::move(*room));
  if (why) {
    to.fail(why);
    co_return why;
  }
  to.complete();
  admitted out{.ticket = {},
               .answer = openai::answer_of(std::move(answer)),
               .run = []() -> awaitable<error_code> { co_return error_code(); },
               .decodes = [] { return true; },
               .covered = std::move(covered),
               .restored = restored};
  co_return std::move(out);
}

}  // namespace cokv::cluster
