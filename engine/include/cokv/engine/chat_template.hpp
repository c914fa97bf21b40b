// Turns chat messages into the text of a prompt, in the form that the model was trained on: by the Jinja template that a
// checkpoint brings (chat_template.jinja, or "chat_template" of tokenizer_config.json), as transformers' apply_chat_template
// does with add_generation_prompt; and where it brings none, each message as a line "Role: content" followed by an empty
// line, with "Assistant:" at the end, where the answer starts.
//
//     auto chat = cokv::chat_template::load("models/tiny-kjv");
//     auto prompt = chat.render(std::vector<cokv::chat_message>{{.role = "user", .content = "Who was Kohath?"}}, now);
//     if (!prompt) return refuse(prompt.error().what);
//     auto ids = tokenizer.encode(*prompt, chat.encoding());
#pragma once

#include <boost/system/result.hpp>
#include <ctime>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cokv/engine/tokenizer.hpp"
#include "cokv/runtime/asio.hpp"
#include "cokv/runtime/clock.hpp"

namespace cokv {

struct chat_message {
  std::string role;  // system, developer, user, assistant or tool
  std::string content;
};

// Why messages can't be rendered, in a line.
struct chat_error {
  bool raised = false;  // in the template's own words, by its raise_exception
  std::string what;
};
template <class T>
using chat_result = boost::system::result<T, chat_error>;
[[noreturn]] void throw_exception_from_error(const chat_error& e, const boost::source_location&);

std::tm local_time(wall_time t);  // of this machine

// Never changes; copies share it, and any thread may use it.
class chat_template {
 public:
  using special_tokens = std::vector<std::pair<std::string, std::string>>;  // "bos_token" and its text
  using to_local = std::tm (*)(wall_time);

  chat_template() = default;  // the plain form

  // The template of a checkpoint's folder, the plain form when it has none. Throws config_error, which names the file, the
  // template's line and what is not known there: statements other than if, for, set, macro, break, continue, generation and
  // raw; filters, tests and methods that no chat template was found to need; recursive loops; arguments from lists. And
  // what is larger than any chat template was found to be: a template of more than 1 MiB, names of more than 200 letters,
  // more than 200 parameters or arguments by name, too many names in too many branches, more than 256 special tokens.
  static chat_template load(const std::filesystem::path& dir);
  static chat_template parse(std::string_view jinja, const std::string& name, special_tokens special = {});

  bool from_checkpoint() const noexcept { return own_ != nullptr; }

  // `now` and `zone` are for templates that tell the date (strftime_now). Errors: no message, a role that is unknown (to the
  // plain form; a template takes any), text that is not UTF-8, whatever the template can't do with these messages, and what
  // takes too long or too much: 2 million steps (a node evaluated, an element looked at, 64 bytes of text gone through),
  // 96 MiB of text. 4,096 messages, or 8 MiB of them, take known templates a quarter and less than half of that. Rendering
  // does not suspend: these bounds are the longest that a caller's thread is held, a fraction of a second.
  chat_result<std::string> render(std::span<const chat_message> messages, wall_time now,
                                  to_local zone = local_time) const;

  // How a rendered chat becomes tokens. A template writes the special tokens itself, the first one too. What a message says
  // is not told apart from what the template says: as with the reference, content that spells a special token becomes it.
  // In the plain form content never does.
  encode_options encoding() const noexcept;

  // Where an answer in this form ends. A template has none: a special token ends its answers.
  std::vector<std::string> stop_strings() const;

 private:
  struct parsed;
  std::shared_ptr<const parsed> own_;
};

// The plain form. errc::invalid_argument: no message, or an unknown role. White space around content is cut off.
result<std::string> render_chat(std::span<const chat_message> messages);

// Where an answer in the plain form ends: a model that goes on writes the next turn itself.
std::vector<std::string> chat_stop_strings();  // {"\n\nUser:"}

}  // namespace cokv
