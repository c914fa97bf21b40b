#include "cluster/link_door.hpp"

#include <algorithm>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::cluster {

link_door::link_door(window_table windows, link_options options)
    : windows_(std::move(windows)), options_(std::move(options)) {}

link_door::~link_door() { close(); }

error_code link_door::listen(std::string_view url) {
  auto made = link_listener::listen(windows_, url, options_);
  if (!made) return made.error();
  listeners_.push_back(std::move(*made));
  return {};
}

std::vector<std::string> link_door::urls() const {
  std::vector<std::string> out;
  for (auto& l : listeners_) out.push_back(l.url());
  return out;
}

void link_door::set_namespace(const namespace_id& ns) {
  options_.ns = ns;
  for (auto& l : listeners_) l.set_namespace(ns);
}

void link_door::close() {
  closed_ = true;
  for (auto& l : listeners_) l.close();
}

awaitable<void> link_door::run() {
  auto v = co_await with(task_group{}, [this](task_group& links) -> awaitable<void> {
    auto doors = co_await with(task_group{}, [&](task_group& group) {
      for (auto& l : listeners_) group.spawn(accept(l, links));
    });
    links.cancel();  // those that are up end with it
    if (!doors) throw boost::system::system_error(doors.error());
  });
  if (!v) throw boost::system::system_error(v.error());
}

awaitable<void> link_door::accept(link_listener& from, task_group& links) {
  for (;;) {
    auto link = co_await from.async_accept(as_result);
    if (link) {
      links.spawn(hear(std::move(*link)));
      continue;
    }
    if (closed_ || link.error() == asio::error::operation_aborted) co_return;
    // One that did not come about is the peer's affair.
    if (link.error() == errc::closed) co_return;
  }
}

awaitable<void> link_door::hear(peer_link link) {
  const auto number = ++numbers_;
  struct on_exit {
    std::shared_ptr<book> expected;
    peer_link& link;
    std::uint64_t number;
    ~on_exit() {
      link.close();
      gone(*expected, number);
    }
  } always{expected_, link, number};
  for (const auto& [begins, keep] : keepers_)
    if (link.peer().name.starts_with(begins)) co_return co_await keep(link);
  if (!link.peer().name.starts_with("kv/")) co_return;
  for (;;) {
    auto message = co_await link.async_receive(as_result);
    if (!message) co_return;
    auto w = read_word(*message);
    if (!w) co_return;
    tell(number, link, std::move(*w));
  }
}

void link_door::tell(std::uint64_t number, const peer_link& link, word w) {
  const auto found = expected_->find({w.id, w.attempt});
  const auto heard = found == expected_->end() ? nullptr : found->second.lock();
  if (!heard) return;
  // The first of each worker's brings its part; the first worker's speaks for all.
  const auto speaks = w.kind == word::what::begin ? w.worker : 0;
  if (w.kind == word::what::begin && heard->begun.try_emplace(speaks, link).second) heard->links_[speaks] = number;
  if (const auto of = heard->links_.find(speaks); of == heard->links_.end() || of->second != number) return;
  switch (w.kind) {
    case word::what::begin:
      break;
    case word::what::first:
      if (!heard->first) heard->first = std::move(w);
      break;
    case word::what::kept:
      heard->kept = std::max(heard->kept, w.tokens);
      break;
    case word::what::failed:
      heard->failed = w.code ? w.code : make_error_code(errc::unavailable);
      break;
  }
  ++heard->words;
  heard->changed.tell();
}

void link_door::gone(book& expected, std::uint64_t number) {
  for (auto& [key, weak] : expected) {
    const auto heard = weak.lock();
    if (!heard) continue;
    const auto speaks = heard->links_.find(0);
    if (speaks == heard->links_.end() || speaks->second != number) continue;
    heard->gone = true;
    heard->changed.tell();
  }
}

result<std::shared_ptr<heard_words>> link_door::expect(std::string id, std::uint32_t attempt) {
  std::erase_if(*expected_, [](auto& e) { return e.second.expired(); });
  auto& place = (*expected_)[name(std::move(id), attempt)];
  if (!place.expired()) return errc::already_exists;
  auto out = std::make_shared<heard_words>(windows_.get_executor());
  place = out;
  return out;
}

}  // namespace cokv::cluster
