#include "cluster/landing_entrance.hpp"

#include "openai/engine_backend.hpp"

namespace cokv::cluster {

landing_entrance::landing_entrance(engine& e, link_door& door, window_table windows, entrance_options options)
    : engine_(e), door_(door), windows_(std::move(windows)), options_(std::move(options)) {}

awaitable<result<admitted>> landing_entrance::open(generation_request r, offer from, std::string id,
                                                   std::uint32_t attempt) {
  landing_options how{.id = std::move(id),
                      .attempt = attempt,
                      .life = options_.life,
                      .links = options_.links ? options_.links() : door_.urls(),
                      .patience = options_.patience,
                      .lease = options_.lease};
  auto opened = co_await landing::open(windows_, engine_, std::move(r), std::move(from), std::move(how));
  if (!opened) co_return opened.error();
  const auto l = *opened;
  admitted out{.ticket = l->ticket(),
               .answer = openai::answer_of(l->take_answer()),
               .run = [l, &door = door_] { return l->run(door); },
               .decodes = [l] { return l->decodes(); }};
  co_return std::move(out);
}

}  // namespace cokv::cluster
