#include "cli/values.hpp"

#include <unistd.h>

#include <algorithm>

#include "cokv/runtime/error.hpp"
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

CLI::Option* add_choice(CLI::App& app, std::string flag, std::string& into, std::vector<std::string> choices,
                        std::string help) {
  std::string all;
  for (const auto& c : choices) all += (all.empty() ? "" : ", ") + c;
  auto parse = [flag, all, choices = std::move(choices), &into](const std::string& text) {
    if (std::find(choices.begin(), choices.end(), text) == choices.end())
      throw CLI::ValidationError(flag, text + ": takes one of " + all);
    into = text;
  };
  return app.add_option_function<std::string>(flag, parse, help + ": " + all)->type_name("NAME")->default_str(into);
}

void add_checkpoint(CLI::App& app, checkpoint_options& into) {
  app.add_option("--model", into.dir, "Folder of a checkpoint: config.json, tokenizer.json, *.safetensors")
      ->required()
      ->type_name("DIR");
  app.add_option("--random-weights", into.random_weights,
                 "A config.json: random weights of its shape, to measure with; of --model only the tokenizer is read")
      ->type_name("FILE");
}

CLI::Option* add_device(CLI::App& app, std::string flag, std::string& into) {
  auto parse = [flag, &into](const std::string& text) {
    const bool cuda = text.starts_with("cuda:") && text.size() > 5 && text.size() <= 8 &&
                      text.find_first_not_of("0123456789", 5) == text.npos;
    if (text != "cpu" && !cuda)
      throw CLI::ValidationError(flag,
                                 text + ": takes cpu, or cuda:N for the GPU of that number (cuda:0 is the first)");
    into = text;
  };
  return app.add_option_function<std::string>(flag, parse, "What computes: cpu, or cuda:N for the GPU of that number")
      ->type_name("DEVICE")
      ->default_str(into);
}

CLI::Option* add_real(CLI::App& app, std::string flag, std::optional<float>& into, double low, double high,
                      std::string help, bool above) {
  auto parse = [flag, low, high, above, &into](const std::string& text) {
    double value = 0;
    const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (wrong != std::errc() || end != text.data() + text.size() || !(value >= low && value <= high) ||
        (above && static_cast<float>(value) <= low)) {
      char range[64];
      std::snprintf(range, sizeof range, ": takes a number %s %g %s %g", above ? "above" : "from", low,
                    above ? "and at most" : "to", high);
      throw CLI::ValidationError(flag, text + range);
    }
    into = static_cast<float>(value);
  };
  return app.add_option_function<std::string>(flag, parse, std::move(help))->type_name("X");
}

void add_tls(CLI::App& app, std::string& certificate_file, std::string& key_file) {
  auto* certificate =
      app.add_option("--tls-cert", certificate_file,
                     "PEM file of the certificate, and of those that vouch for it: HTTPS alone is spoken. "
                     "SIGHUP reads it again")
          ->type_name("FILE");
  auto* key = app.add_option("--tls-key", key_file, "PEM file of its key")->type_name("FILE")->needs(certificate);
  certificate->needs(key);
}

void check_memory(std::string_view flag, std::uint64_t bytes) {
  const long pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page <= 0) return;
  const auto there = static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page);
  if (bytes / 2 > there)  // some swap is fine
    throw config_error(std::string(flag) + ": " + format_size(bytes) +
                       " is more than twice the memory of this machine (" + format_size(there) + ')');
}

}  // namespace cokv::cli
