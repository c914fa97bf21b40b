// Turns chat messages into the text of a prompt, for models that bring no template of their own: each message is a line
// "Role: content" followed by an empty line, and the prompt ends with "Assistant:", where the answer starts.
//
//     auto prompt = cokv::render_chat({{.role = "user", .content = "Who was Kohath?"}});
//     // "User: Who was Kohath?\n\nAssistant:"
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cokv/runtime/asio.hpp"

namespace cokv {

struct chat_message {
  std::string role;  // system, developer, user, assistant or tool
  std::string content;
};

// errc::invalid_argument: no message, or an unknown role. Content is taken as it is; white space around it is cut off.
result<std::string> render_chat(std::span<const chat_message> messages);

// Where an answer in this form ends: a model that goes on writes the next turn itself.
std::vector<std::string> chat_stop_strings();  // {"\n\nUser:"}

}  // namespace cokv
