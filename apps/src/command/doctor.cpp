#include <boost/json/serialize.hpp>

#include "cli/cli.hpp"
#include "doctor/probe.hpp"

namespace cokv::cli {

void add_doctor(CLI::App& app, action& chosen) {
  auto json = std::make_shared<bool>(false);
  auto* command = app.add_subcommand("doctor", "Says what works on this machine and what it means");
  command->add_flag("--json", *json, "One JSON object instead of text")->disable_flag_override();
  command->callback([json, &chosen] {
    chosen = [json](streams io) {
      const auto facts = doctor::probe();
      const auto findings = doctor::judge(facts);
      if (*json)
        io.out << boost::json::serialize(doctor::to_json(facts, findings)) << '\n';
      else
        io.out << doctor::to_text(findings);
      return 0;
    };
  });
}

}  // namespace cokv::cli
