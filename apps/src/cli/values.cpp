#include "cli/values.hpp"

#include "cokv/runtime/size.hpp"

namespace cokv::cli {

CLI::Option* add_size(CLI::App& app, std::string flag, std::uint64_t& into, std::string help) {
  auto parse = [flag, &into](const std::string& text) {
    const auto size = parse_size(text);
    if (!size) throw CLI::ValidationError(flag, text + ": " + size.error().message());
    into = *size;
  };
  return app.add_option_function<std::string>(flag, parse, std::move(help))
      ->type_name("SIZE")
      ->default_str(format_size(into));
}

CLI::Option* add_endpoint(CLI::App& app, std::string flag, endpoint& into, std::string help) {
  auto parse = [flag, &into](const std::string& text) {
    const auto at = parse_endpoint(text);
    if (!at) throw CLI::ValidationError(flag, text + ": " + at.error().message());
    into = *at;
  };
  return app.add_option_function<std::string>(flag, parse, std::move(help))
      ->type_name("HOST:PORT")
      ->default_str(into.to_string());
}

}  // namespace cokv::cli
