// One client connection of a server: reads requests one after the other, runs their handlers and watches for the
// client's going meanwhile.
#pragma once

#include "http/server.hpp"

namespace cokv::http::detail {

class connection {
 public:
  connection(std::shared_ptr<server_state> s, byte_stream stream);
  ~connection();
  connection(const connection&) = delete;

  awaitable<void> run();

  bool idle() const { return idle_ && wire_.stream.is_open(); }
  bool lingers() const { return lingering_ && wire_.stream.is_open(); }
  bool shaking_hands() const { return shaking_ != nullptr; }
  bool closed() const { return !shaking_ && !wire_.stream.is_open(); }
  time_point idle_since() const { return since_; }  // or since the last byte, of one that lingers
  void close();
  // Ends the handler that runs, and has its client told. False: none runs.
  bool stop_handler();

 private:
  enum class next { again, end, linger };

  awaitable<bool> shake_hands();
  awaitable<next> serve_one();
  awaitable<result<void>> read_head(exchange::parser& parser);
  std::optional<problem> check_head(exchange::parser& parser, request_head& head);
  std::optional<problem> check_use(const request_head& head, const exchange& x, const route_options& route) const;
  awaitable<void> answer(exchange& x, const target& to);
  awaitable<void> handle(exchange& x, const target& to, const task_group& scope);
  void watch_peer(exchange& x, task_group& scope);
  awaitable<void> linger();
  awaitable<void> say_farewell(exchange& x);

  std::shared_ptr<server_state> server_;
  wire wire_;
  std::list<connection*>::iterator at_;
  bool idle_ = true;
  bool lingering_ = false;
  bool peer_gone_ = false;
  task_group* handler_ = nullptr;
  task_group* shaking_ = nullptr;  // while TLS is agreed on; the stream belongs to that meanwhile
  bool stopped_ = false;
  time_point since_;
};

}  // namespace cokv::http::detail
