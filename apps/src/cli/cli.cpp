#include "cli/cli.hpp"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>

#include "cli/logging.hpp"
#include "cli/values.hpp"

namespace cokv::cli {
namespace {

// CLI11 spreads some messages over lines; a user who pipes stderr wants one.
std::string one_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// What a shell makes of an unset variable. CLI11 would take it for a flag that was not given.
std::optional<std::string> empty_value(const std::vector<std::string>& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto& a = arguments[i];
    if (!a.starts_with("--")) continue;
    if (a.ends_with('=') && a.find('=') == a.size() - 1) return a.substr(0, a.size() - 1);
    if (a.find('=') == a.npos && i + 1 < arguments.size() && arguments[i + 1].empty()) return a;
  }
  return std::nullopt;
}

}  // namespace

int run(std::vector<std::string> arguments, std::ostream& out, std::ostream& err) {
  CLI::App app{"cokv: co_await the KV cache", "cokv"};
  app.set_version_flag("--version", "cokv " COKV_VERSION);
  app.footer("cokv SUBCOMMAND --help lists its options. A first answer: cokv generate --model DIR --prompt TEXT");
  app.require_subcommand(0, 1);  // none is told below: an unknown flag is the better thing to name

  std::string level = "info";
  add_choice(app, "--log-level", level, {"debug", "info", "warning", "error", "off"}, "Least level logged to stderr");

  action chosen;
  add_cache(app, chosen);
  add_doctor(app, chosen);
  add_fit(app, chosen);
  add_generate(app, chosen);
  add_load(app, chosen);
  add_plan(app, chosen);
  add_serve(app, chosen);
  add_simulate(app, chosen);

  if (const auto flag = empty_value(arguments)) {
    err << "cokv: " << *flag << ": its value is empty\n";
    return 2;
  }
  try {
    std::reverse(arguments.begin(), arguments.end());  // CLI11 pops from the back
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    const auto used = app.get_subcommands();
    out << (used.empty() ? app.help() : used.front()->help("cokv"));
    return 0;
  } catch (const CLI::CallForVersion& e) {
    out << e.what() << '\n';
    return 0;
  } catch (const CLI::ArgumentMismatch& e) {
    const std::string text = e.what();  // "--flag: 1 required N missing", or "flag was given a disallowed ..."
    const auto colon = text.find(':');
    if (colon != text.npos)
      err << "cokv: " << text.substr(0, colon) << ": needs a value\n";
    else
      err << "cokv: --" << text.substr(0, text.find(' ')) << ": takes no value\n";
    return 2;
  } catch (const CLI::ExtrasError& e) {
    const std::string text = e.what();
    const auto what = text.substr(std::min(text.size(), text.find(": ") + 2));
    const auto used = app.get_subcommands();
    const std::string of = used.empty() ? "cokv" : "cokv " + used.front()->get_name();
    err << "cokv: " << one_line(what) << ": unknown here; " << of << " --help lists what there is\n";
    return 2;
  } catch (const CLI::ParseError& e) {
    err << "cokv: " << one_line(e.what()) << '\n';
    return 2;
  } catch (const config_error& e) {
    err << "cokv: " << one_line(e.what()) << '\n';
    return 2;
  }

  if (!chosen) {
    err << "cokv: a subcommand is required; cokv --help lists them\n";
    return 2;
  }
  try {
    start_logging(level);
    return chosen({out, err});
  } catch (const config_error& e) {
    err << "cokv: " << one_line(e.what()) << '\n';
    return 2;
  } catch (const std::exception& e) {
    err << "cokv: " << one_line(e.what()) << '\n';
    return 1;
  }
}

}  // namespace cokv::cli
