#include "cli/cli.hpp"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>

#include "cli/logging.hpp"

namespace cokv::cli {
namespace {

// CLI11 spreads some messages over lines; a user who pipes stderr wants one.
std::string one_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

int run(std::vector<std::string> arguments, std::ostream& out, std::ostream& err) {
  CLI::App app{"cokv: co_await the KV cache", "cokv"};
  app.set_version_flag("--version", "cokv " COKV_VERSION);
  app.require_subcommand(0, 1);  // none is told below: an unknown flag is the better thing to name

  std::string level = "info";
  app.add_option("--log-level", level, "Least level logged to stderr")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}))
      ->capture_default_str();

  action chosen;
  add_cache(app, chosen);
  add_doctor(app, chosen);
  add_generate(app, chosen);
  add_serve(app, chosen);

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
