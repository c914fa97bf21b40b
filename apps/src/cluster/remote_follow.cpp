// An answer that somebody has begun by its name: which decode workers have it, and whether it is read on there.
#include "cluster/begun_sequence.hpp"
#include "cluster/patient_call.hpp"
#include "cluster/remote_state.hpp"
#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/with.hpp"
#include "http/json.hpp"

namespace cokv::cluster {

// Nothing: it is to be computed, in an attempt above state::attempt. What nobody will read is given up.
awaitable<std::optional<remote_answers::outcome>> remote_answers::follow(std::shared_ptr<state> s,
                                                                         const generation_request& r) {
  std::vector<begun_sequence> told;
  std::vector<seat> where;  // who told each
  (void)co_await with(task_group{}, [&](task_group& group) {
    for (const auto& [id, w] : workers_.table().all()) {
      if ((static_cast<std::uint8_t>(w.facts.role) & static_cast<std::uint8_t>(worker_role::decode)) == 0) continue;
      auto at = std::make_shared<seat>(workers_.seat_at(id, 0));
      if (!*at) continue;
      group.spawn([&, at]() -> awaitable<void> {
        const auto reply = co_await with_deadline(
            ask_patiently((*at)->calls(), {.target = "/v1/sequences/" + s->id}, options_.look, options_.pause),
            options_.look);
        const auto v = reply && reply->code == 200 ? http::parse_json(reply->body) : http::parse_json("");
        const auto begun = v ? read_begun(*v) : parsed<begun_sequence>(v.error());
        if (!begun) co_return;
        told.push_back(*begun);
        where.push_back(std::move(*at));
      });
    }
  });
  auto found = choose(told);
  s->attempt = found.attempt;
  if (found.attempt + options_.attempts > most_attempts) found = {}, s->attempt = 0;
  const auto kept = found.follow ? found.follow : found.room;
  (void)co_await with(task_group{}, [&](task_group& group) {
    for (std::size_t i = 0; i < told.size(); ++i)
      if (i != kept)
        group.spawn([&, i]() -> awaitable<void> {
          const auto target = "/v1/sequences/" + s->id + "?attempt=" + std::to_string(told[i].attempt);
          (void)co_await with_deadline(
              ask_patiently(where[i]->calls(), {.method = http::verb::delete_, .target = target}, options_.look,
                            options_.pause),
              options_.look);
        });
  });
  if (!kept) co_return std::nullopt;
  s->decode = workers_.seat_at(where[*kept]->id(), r.prompt.size() + std::uint64_t{r.max_tokens});
  if (!s->decode || !found.follow) co_return std::nullopt;
  s->held = true;
  s->life = s->decode->self().life;
  s->living = told[*kept].attempt;
  ++answers_followed_;
  tell(answer_change::followed, *s, {}, s->decode->url(), told[*kept].pieces);
  co_return co_await read(s, r, nullptr, {});
}

}  // namespace cokv::cluster
