// One request and its response, as a handler sees them. Both bodies stream: a request body is read as it arrives,
// straight into the handler's memory where its length is known; a response goes out as it is written, and a slow
// client slows its handler down. When the client goes away while a handler runs, the handler is cancelled.
//
//     routes: server.route(verb::post, "/v1/echo", [](exchange& x) -> awaitable<void> {
//       auto body = co_await x.read_all();
//       if (!body) co_return;                                  // answered by the server: 413, 408 or 400
//       co_await x.respond(status::ok, "text/plain", *body);
//     });
//
//     x.start(status::ok, "text/event-stream");                 // streaming
//     while (auto token = next()) if (co_await x.write("data: " + *token + "\n\n")) co_return;
//     co_await x.finish();
#pragma once

#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <span>

#include "cokv/runtime/task_group.hpp"
#include "http/api_keys.hpp"
#include "http/limits.hpp"
#include "http/message.hpp"
#include "http/wire.hpp"

namespace cokv::http {

class exchange {
 public:
  using parser = beast::http::request_parser<beast::http::buffer_body>;

  exchange(wire& w, const limits& limit, parser& p, request_head& head, const pressure& others, bool may_keep_alive);
  exchange(const exchange&) = delete;

  const request_head& request() const { return head_; }
  std::string peer() const { return wire_.stream.peer(); }
  // Whose key came with the request; on a server without keys somebody without a name who may everything, on a route
  // that needs no key somebody who may nothing.
  const key_holder& who() const { return *who_; }

  // ---- the request body
  // Errors: errc::too_large, errc::deadline (too slow), errc::protocol (malformed), the stream's own. They stick; a
  // handler that returns after one without having responded leaves the answer to the server.
  std::optional<std::uint64_t> content_length() const { return length_; }                // none: chunked
  awaitable<result<std::size_t>> read_some(asio::mutable_buffer into);                   // 0: the end
  awaitable<result<std::size_t>> read_some(std::span<const asio::mutable_buffer> into);  // in one system call
  awaitable<error_code> read_exactly(asio::mutable_buffer into);  // errc::protocol: the body ends before
  awaitable<result<std::string>> read_all();
  bool body_done() const { return body_done_; }

  // ---- for handlers whose answer stands for something that its client uses until it closes the connection
  bool carries_descriptors() const { return wire_.stream.carries_descriptors(); }
  void attach(byte_stream::descriptor d) { wire_.stream.attach(std::move(d)); }  // to the answer
  byte_stream::descriptor take_attached() { return wire_.take_attached(); }      // that came; none: null
  // Goes with the connection, and is there for its later requests.
  std::shared_ptr<void>& kept() { return wire_.kept; }
  // Nothing follows this request: what its client still sends is dropped. False: something came already.
  bool stay();
  // After finish(): until the client goes or the server ends. The handler is cancelled then, as ever, but this returns: what it
  // awaits next would throw.
  awaitable<void> until_left();
  // Whether the client has gone, rather than the server ended what it had.
  std::shared_ptr<const bool> left() const { return left_; }

  // ---- for handlers that hold something scarce while a body moves
  // While `others_wait()` the client has to keep up, or the body ends with errc::deadline: a byte every
  // limits::contended_stall, and a turn of so many bytes, either way, in limits::contended_turn. Only time in which the
  // client is waited for counts.
  void contend(std::function<bool()> others_wait, std::uint64_t turn_bytes);
  void next_turn(std::uint64_t turn_bytes);
  // The body told of so many bytes that were taken from elsewhere: they count for the client's pace as if it had sent them.
  void moved(std::uint64_t bytes);

  // ---- the response
  // An interim 102: so far all is well. Before start() or respond(); to a client that expects it. Nothing over HTTP/1.0,
  // which has no such answers.
  awaitable<error_code> still_at_it();
  void set(field name, std::string value);  // before start() or respond()
  void set(std::string_view name, std::string value);
  void close_after() { keep_alive_ = false; }
  awaitable<error_code> respond(status code, std::string_view type, std::string_view body);
  awaitable<error_code> refuse(problem p);  // respond() with an error object
  // Then write() and finish(). With a length exactly that many bytes are to be written; without, chunks. The head goes
  // out with the first write, in one system call, be it of nothing.
  void start(status code, std::string_view type, std::optional<std::uint64_t> length = {});
  awaitable<error_code> write(std::string_view bytes);
  awaitable<error_code> write(std::span<const asio::const_buffer> buffers);  // in one system call where possible
  awaitable<error_code> finish();
  // What a started answer ends with when the server stops before it is complete: the last thing its client reads.
  void last_words(std::string bytes) { last_words_ = std::move(bytes); }
  // The connection ends after this answer, since the server does or somebody waits for a place. Answers without an end
  // of their own end then.
  bool last_answer() const { return others_.last_answers; }
  bool started() const { return response_ != phase::none; }
  bool finished() const { return response_ == phase::done; }
  error_code body_error() const { return body_error_; }
  status code() const { return code_; }
  std::uint64_t received() const { return received_; }
  std::uint64_t sent() const { return sent_; }

  // ---- for the server
  void identify(std::shared_ptr<const key_holder> who) { who_ = std::move(who); }
  void limit_body(std::uint64_t bytes) { body_limit_ = bytes; }
  void watch_with(std::function<void()> start) { on_body_done_ = std::move(start); }
  bool stays() const { return left_ != nullptr; }
  void has_left() {
    if (left_) *left_ = true;
  }
  bool reusable() const { return keep_alive_ && finished() && body_done_; }
  awaitable<void> skip_body();  // what little is left, so that the connection can be used again
  awaitable<void> say_last_words();
  void withdraw();  // start(), if nothing of the answer was sent: another may be given

 private:
  enum class phase { none, body, done };

  // How long the client was waited for, and what it did in that time.
  struct pace {
    std::uint64_t bytes = 0;
    duration waited{};
  };

  template <class Once>
  awaitable<result<std::size_t>> patiently(pace& body, Once once);
  duration patience(const pace& body, duration idle) const;
  awaitable<result<std::size_t>> read_counted(std::span<const asio::mutable_buffer> into);
  awaitable<result<std::size_t>> read_chunked(asio::mutable_buffer into);
  awaitable<error_code> put(std::span<const asio::const_buffer> from);
  awaitable<error_code> continue_if_expected();
  bool can_answer();
  void end_body();
  std::string head_text(status code, std::string_view type, std::optional<std::uint64_t> length);
  wire& wire_;
  const limits& limits_;
  const pressure& others_;
  parser& parser_;
  request_head& head_;
  inline static const auto nobody = std::make_shared<const key_holder>(key_holder{.rights = 0});
  std::shared_ptr<const key_holder> who_ = nobody;
  std::optional<std::uint64_t> length_;
  std::uint64_t body_limit_;
  std::uint64_t received_ = 0;
  std::uint64_t around_chunks_ = 0;
  bool chunks_shown_ = false;  // to the parser (wire.hpp)
  pace in_, out_, turn_;
  std::uint64_t turn_bytes_ = 0;
  std::function<bool()> others_wait_;
  bool body_done_ = false;
  bool reading_ = false;
  error_code body_error_;
  std::function<void()> on_body_done_;
  std::shared_ptr<bool> left_;

  phase response_ = phase::none;
  status code_ = status::unknown;
  bool keep_alive_;
  bool chunked_ = false;
  std::optional<std::uint64_t> promised_;
  std::uint64_t sent_ = 0;
  error_code write_error_;
  bool writing_ = false;  // stays so when a write was cut short: nothing can follow it
  bool torn_ = false;     // a part of what was to be written went out: not even another answer can
  std::string last_words_;
  std::string fields_;
  std::string head_out_;  // until it is sent
};

}  // namespace cokv::http
