#include "cokv/engine/chat_template.hpp"

#include <doctest/doctest.h>

#include "cokv/runtime/error.hpp"

using namespace cokv;

TEST_CASE("messages become turns in plain text, and the answer's turn is open") {
  std::vector<chat_message> chat{{"system", " Be brief.\n"},
                                 {"user", "Who was Kohath?"},
                                 {"assistant", "A son of Levi."},
                                 {"user", "And Gershon?"}};
  CHECK(render_chat(chat).value() ==
        "System: Be brief.\n\nUser: Who was Kohath?\n\nAssistant: A son of Levi.\n\nUser: And Gershon?\n\nAssistant:");
  CHECK(render_chat(std::vector<chat_message>{{"user", ""}}).value() == "User: \n\nAssistant:");
}

TEST_CASE("an unknown role and an empty chat are refused") {
  CHECK(render_chat({}).error() == errc::invalid_argument);
  CHECK(render_chat(std::vector<chat_message>{{"wizard", "x"}}).error() == errc::invalid_argument);
}

TEST_CASE("a stop string is how a next turn begins") {
  auto next = render_chat(std::vector<chat_message>{{"assistant", "x"}, {"user", "y"}}).value();
  for (auto& stop : chat_stop_strings()) CHECK(next.find(stop) != next.npos);
}
