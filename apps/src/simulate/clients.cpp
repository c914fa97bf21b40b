#include "simulate/clients.hpp"

#include "cluster/wire_of.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::simulate {
namespace {

std::string name_of(std::size_t replica) { return "replica" + std::to_string(replica); }

double ms(duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

}  // namespace

clients::clients(asio::any_io_executor ex, std::vector<std::unique_ptr<replica>>& all, std::uint32_t routers,
                 cluster::placement_options how)
    : ex_(std::move(ex)), time_(clock::of(ex_)), all_(all), how_(how), routers_(routers) {
  for (std::size_t n = 0; n < routers; ++n) {
    auto& r = routers_[n];
    r.first = n * all_.size() / routers;
    for (auto i = r.first; i < (n + 1) * all_.size() / routers; ++i) r.table.add(name_of(i));
    hear_all(r);
  }
}

// As heartbeats tell it.
void clients::hear_all(router& r) {
  r.heard = time_.now();
  for (std::uint32_t id = 0; id < r.table.all().size(); ++id) {
    const auto& e = all_[r.first + id]->engine();
    const auto name = name_of(r.first + id);
    r.table.heard(id, cluster::facts_of(e, cluster::worker_role::both, cluster::offer_of(e, name, name)), r.heard);
  }
}

awaitable<void> clients::ask(const workload::load_item& item, workload::request_record& r) {
  r.asked = item;
  r.sent = true;
  auto& by = routers_[next_++ % routers_.size()];
  if (time_.now() - by.heard >= by.table.health().period) hear_all(by);
  const auto length = item.prompt_tokens + item.output_tokens;
  const auto where =
      cluster::place(by.table, index_,
                     {.what = cluster::worker_role::decode, .prompt = item.prompt_tokens, .length = length}, how_, {});
  if (!where) {
    r.error = "no replica";
    co_return;
  }
  const auto begun = time_.now();
  generation_request request{.max_tokens = item.output_tokens, .ignore_end_tokens = true};
  request.prompt.assign(item.prompt_tokens, prompt_token);
  auto answer = all_[by.first + *where]->engine().submit(std::move(request));
  if (!answer) {
    r.error = answer.error().message();
    co_return;
  }
  by.table.give(*where, length);
  auto last = begun;
  for (;;) {
    const auto [ec, piece] = co_await answer->async_next(asio::as_tuple(asio::deferred));
    if (ec) {
      if (ec != asio::error::eof) r.error = ec.message();
      break;
    }
    const auto now = time_.now();
    if (r.output_tokens++ == 0)
      r.ttft_ms = ms(now - begun);
    else
      r.gaps_ms.push_back(static_cast<float>(ms(now - last)));
    last = now;
  }
  if (r.error.empty() && r.output_tokens < item.output_tokens) r.error = "cut where the sequence was full";
  r.total_ms = ms(last - begun);
  r.prompt_tokens = item.prompt_tokens;
  by.table.ended(*where, length);
}

awaitable<void> clients::open(const std::vector<workload::load_item>& items,
                              std::vector<workload::request_record>& records) {
  const auto begun = time_.now();
  const auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    for (std::size_t i = 0; i < items.size(); ++i) {
      co_await time_.async_wait_until(begun + items[i].at, asio::deferred);
      group.spawn(ask(items[i], records[i]));
    }
  });
  if (!v) throw boost::system::system_error(v.error());
}

awaitable<void> clients::closed(const std::vector<workload::load_item>& items, std::uint32_t at_once,
                                std::vector<workload::request_record>& records) {
  const auto begun = time_.now();
  std::size_t next = 0;
  const auto v = co_await with(task_group{}, [&](task_group& group) {
    for (std::uint32_t c = 0; c < at_once; ++c)
      group.spawn([&]() -> awaitable<void> {
        while (next < items.size()) {
          const auto i = next++;
          auto item = items[i];
          item.at = std::chrono::duration_cast<std::chrono::microseconds>(time_.now() - begun);
          co_await ask(item, records[i]);
          if (!records[i].error.empty()) co_await time_.async_wait_for(std::chrono::seconds(1), asio::deferred);
        }
      });
  });
  if (!v) throw boost::system::system_error(v.error());
}

}  // namespace cokv::simulate
