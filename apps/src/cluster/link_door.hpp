// Where the links of those come in who compute prompts for this worker: it hears what they say beside the KV, and tells
// whoever waits for that prompt.
//
//     link_door door(windows, {.name = "kv/decode-0/" + life, .ns = ns});
//     door.listen("tcp://10.0.0.2:0");
//     group.spawn(door.run());
//     auto heard = door.expect(id, attempt);                   // before the peer can know of it
//     while (!heard->begun.contains(0)) co_await heard->changed.async_wait();
//
// Links for other things are handed on by how their name begins: "ring/", copies of answers (answer_copies.hpp); "loan/", what
// is done with memory that was lent (loans.hpp).
//
// Words of prompts that nobody expects are for nobody: of attempts of before. A peer that breaks the protocol loses its
// link. Belongs to one context.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/news.hpp"
#include "cluster/word.hpp"
#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/task_group.hpp"

namespace cokv::cluster {

// What was heard of one prompt, as long as somebody holds it.
class heard_words {
 public:
  explicit heard_words(asio::any_io_executor ex) : changed(std::move(ex)) {}
  heard_words(const heard_words&) = delete;

  // Bring it, by the number of the sender's worker: of each the first that said so, whatever others say later.
  std::map<std::uint32_t, peer_link> begun;
  std::optional<word> first;  // once
  std::uint32_t kept = 0;     // the most that was said
  error_code failed;          // it says that nothing more will come
  bool gone = false;          // the first worker's link went down: nothing more is heard
  std::uint64_t words = 0;
  news changed;

 private:
  friend class link_door;
  std::map<std::uint32_t, std::uint64_t> links_;  // which ones
};

class link_door {
 public:
  link_door(window_table windows, link_options options);
  ~link_door();

  // link_listener::listen()'s errors.
  error_code listen(std::string_view url);
  std::vector<std::string> urls() const;
  void set_namespace(const namespace_id& ns);  // link_listener's, of all of them
  // Who has links whose name begins so, "ring/", until they end; those that nobody has are refused.
  using keeper = std::function<awaitable<void>(peer_link)>;
  void on(std::string begins, keeper keeps) { keepers_.emplace_back(std::move(begins), std::move(keeps)); }
  // Accepts and hears until close(), or until it is cancelled; then no link of its is up.
  awaitable<void> run();
  void close();

  // errc::already_exists while somebody holds what this gave before.
  result<std::shared_ptr<heard_words>> expect(std::string id, std::uint32_t attempt);

 private:
  using name = std::pair<std::string, std::uint32_t>;  // id and attempt

  awaitable<void> accept(link_listener& from, task_group& links);
  awaitable<void> hear(peer_link link);
  void tell(std::uint64_t number, const peer_link& link, word w);

  window_table windows_;
  link_options options_;
  std::vector<std::pair<std::string, keeper>> keepers_;
  std::vector<link_listener> listeners_;
  // Of it and of its coroutines: a context that is destroyed drops them in any order.
  using book = std::map<name, std::weak_ptr<heard_words>>;
  static void gone(book& expected, std::uint64_t number);
  std::shared_ptr<book> expected_ = std::make_shared<book>();
  std::uint64_t numbers_ = 0;
  bool closed_ = false;
};

}  // namespace cokv::cluster
