#include "load/runner.hpp"

#include <algorithm>
#include <boost/json/parse.hpp>

#include "cokv/runtime/deadline.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"

namespace cokv::workload {
namespace json = boost::json;
namespace {

double milliseconds(duration d) { return std::chrono::duration<double, std::milli>(d).count(); }

// What an event of a stream says.
struct told {
  bool text = false;  // something was added to the answer
  bool last = false;  // why it ended
  std::optional<std::uint32_t> prompt, output;
  std::string error;
};

std::optional<std::uint32_t> count_of(const json::object& usage, std::string_view name) {
  const auto* v = usage.if_contains(name);
  boost::system::error_code ec;
  const auto n = v && v->is_number() ? v->to_number<std::uint32_t>(ec) : 0;
  return v && !ec ? std::optional(n) : std::nullopt;
}

const json::object* object_in(const json::object& of, std::string_view name) {
  const auto* v = of.if_contains(name);
  return v ? v->if_object() : nullptr;
}

bool has_text(const json::object& of, std::string_view name) {
  const auto* text = of.if_contains(name);
  return text && text->is_string() && !text->as_string().empty();
}

bool says_something(const json::object& choice) {
  const auto* delta = object_in(choice, "delta");
  return delta ? has_text(*delta, "content") || has_text(*delta, "reasoning_content") : has_text(choice, "text");
}

// The word of an error object; empty: there is none.
std::string reason_of(const json::object& body) {
  const auto* error = object_in(body, "error");
  for (const char* name : {"code", "type"})
    if (error && has_text(*error, name)) return std::string(error->at(name).as_string());
  return {};
}

std::optional<told> read_event(std::string_view text) {
  boost::system::error_code ec;
  const auto v = json::parse(text, ec);
  const auto* event = ec ? nullptr : v.if_object();
  if (!event) return std::nullopt;
  told out;
  if (object_in(*event, "error")) {
    const auto reason = reason_of(*event);
    out.error = "in its stream: " + (reason.empty() ? "error" : reason);
  }
  if (const auto* usage = object_in(*event, "usage")) {
    out.prompt = count_of(*usage, "prompt_tokens");
    out.output = count_of(*usage, "completion_tokens");
  }
  const auto* choices = event->if_contains("choices");
  if (choices && choices->is_array())
    for (const auto& one : choices->as_array())
      if (const auto* choice = one.if_object()) {
        out.text |= says_something(*choice);
        const auto* reason = choice->if_contains("finish_reason");
        out.last |= reason && reason->is_string();
      }
  return out;
}

// Its times count from here on.
awaitable<error_code> ask(http::client& server, std::string target, std::string body, duration patience,
                          request_record& r) {
  auto& time = clock::of(co_await asio::this_coro::executor);
  const auto start = time.now();
  auto last = start;
  std::uint32_t pieces = 0;
  const auto total = [&] { r.total_ms = milliseconds(time.now() - start); };
  auto lines = co_await server.open_lines({.method = http::verb::post,
                                           .target = std::move(target),
                                           .body = std::move(body),
                                           .first_byte = patience,
                                           .silence = patience});
  total();
  if (!lines) co_return lines.error();
  if (lines->code() != 200) {
    r.error = "status " + std::to_string(lines->code());
    boost::system::error_code none;
    const auto body_of = json::parse(lines->refusal(), none);
    const auto reason = !none && body_of.is_object() ? reason_of(body_of.as_object()) : std::string();
    if (!reason.empty()) r.error += " (" + reason + ')';
    co_return error_code();
  }
  bool done = false;
  for (;;) {
    auto line = co_await lines->next();
    total();
    if (!line) {
      if (line.error() != asio::error::operation_aborted) r.error = "cut: " + line.error().message();
      co_return line.error();
    }
    if (!*line) break;
    std::string_view text = **line;
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (!text.starts_with("data:")) continue;
    text.remove_prefix(5);
    if (text.starts_with(' ')) text.remove_prefix(1);
    if (text == "[DONE]") {
      done = true;
      continue;
    }
    const auto event = read_event(text);
    if (!event) co_return make_error_code(errc::protocol);
    if (!event->error.empty()) r.error = event->error;
    if (event->prompt) r.prompt_tokens = *event->prompt;
    if (event->output) r.output_tokens = *event->output;
    if (!event->text && !(event->last && pieces == 0)) continue;
    const auto now = time.now();
    if (pieces++ == 0)
      r.ttft_ms = milliseconds(now - start);
    else
      r.gaps_ms.push_back(static_cast<float>(milliseconds(now - last)));
    last = now;
  }
  if (r.output_tokens == 0) r.output_tokens = pieces;
  if (pieces > 0) r.total_ms = milliseconds(last - start);  // what follows the last token is no answer
  if (!done && r.error.empty()) r.error = "cut: without [DONE]";
  co_return error_code();
}

awaitable<void> one(http::client& server, std::string target, std::string body, duration timeout, request_record& r,
                    std::size_t& in_flight) {
  struct on_exit {
    std::size_t& n;
    ~on_exit() { --n; }
  } always{in_flight};
  auto& time = clock::of(co_await asio::this_coro::executor);
  const auto start = time.now();
  request_record of{.asked = r.asked, .late_ms = r.late_ms, .sent = true};
  const auto done = co_await with_deadline(ask(server, std::move(target), std::move(body), timeout, of), timeout);
  if (!done && of.error.empty()) of.error = done.error().message();
  if (!done && of.total_ms == 0) of.total_ms = milliseconds(time.now() - start);
  const auto state = co_await asio::this_coro::cancellation_state;
  of.stopped = state.cancelled() != asio::cancellation_type::none;
  r = std::move(of);
}

}  // namespace

awaitable<void> run_load(http::client& server, const std::vector<load_item>& items, const prompt_maker& prompts,
                         runner_options o, std::vector<request_record>& all) {
  auto& time = clock::of(co_await asio::this_coro::executor);
  const auto start = time.now();
  std::size_t in_flight = 0;
  all.assign(items.size(), {});
  for (std::size_t i = 0; i < items.size(); ++i) {
    all[i].asked = items[i];
    all[i].stopped = true;  // unless it comes to an end
  }
  auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
    for (std::size_t i = 0; i < items.size(); ++i) {
      const auto at = start + items[i].at;
      auto body = prompts.body(items[i], i);
      // Who is late lets others have their turn all the same: answers are read meanwhile.
      if (at > time.now())
        co_await time.async_wait_until(at, asio::deferred);
      else
        co_await asio::post(asio::deferred);
      auto& r = all[i];
      if (in_flight >= o.max_in_flight) {
        r.error = "not sent: too many in flight";
        r.stopped = false;
        continue;
      }
      ++in_flight;
      r.sent = true;
      r.late_ms = std::max(0.0, milliseconds(time.now() - at));
      group.spawn(one(server, prompts.target(), std::move(body), o.timeout, r, in_flight));
    }
  });
  if (v.error() && v.error() != asio::error::operation_aborted) throw boost::system::system_error(v.error());
}

}  // namespace cokv::workload
