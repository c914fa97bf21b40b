#include "load/load.hpp"

#include "cli/cli.hpp"
#include "cli/values.hpp"

namespace cokv::cli {

void add_load(CLI::App& app, action& chosen) {
  auto o = std::make_shared<workload::options>();
  auto* c = app.add_subcommand("load", "Puts a load on an OpenAI-compatible server, and measures what its clients see");
  c->add_option("--url", o->url, "The server")->type_name("http[s]://HOST:PORT")->capture_default_str();
  c->add_option("--api-key-file", o->api_key_file, "File whose first line is the key for it")->type_name("FILE");
  c->add_option("--ca-file", o->ca_file, "Who may vouch for https://; the system's unless told")->type_name("FILE");
  c->add_option("--model", o->prompts.model, "Of which model; the server's first unless told")->type_name("NAME");
  add_choice(*c, "--endpoint", o->endpoint, {"completions", "chat"}, "Which of its routes");

  const auto flags = workload::add_demand(*c, o->what);
  flags.rate->description("Requests a second; where --find-goodput begins");
  add_count(*c, "--seed", o->prompts.seed, 0, std::numeric_limits<std::uint64_t>::max(),
            "The same seed makes the same load, prompts too: the server may have cached them");

  add_count(*c, "--vocabulary", o->prompts.vocabulary, 8, 1 << 24,
            "Prompts are token ids below N, so exactly as long as asked for; text of as many words unless told");
  auto* shared = add_count(*c, "--shared-prefix", o->prompts.shared, 0, 1 << 24,
                           "Leading tokens that prompts of a group have in common");
  add_count(*c, "--groups", o->prompts.groups, 1, 1 << 24, "How many groups of those there are")->needs(shared);
  c->add_option("--temperature", o->prompts.temperature, "0 is greedy")
      ->check(CLI::Range(0.0, 2.0))
      ->capture_default_str();
  c->add_flag("--ignore-eos", o->prompts.ignore_eos,
              "Answers as long as asked for, of servers that know `ignore_eos` (this one, vLLM, SGLang)")
      ->disable_flag_override();

  add_real(*c, "--slo-ttft", o->slo_ttft, 0, 1e9, "Milliseconds to the first token that are good enough", true);
  add_real(*c, "--slo-tpot", o->slo_tpot, 0, 1e9, "Milliseconds a token after the first that are good enough", true);
  auto* find =
      c->add_flag("--find-goodput", o->find_goodput,
                  "Finds the greatest rate at which enough requests are good enough, by runs of --duration, 10 s "
                  "unless told: a burst that a server can put up with for a moment is none")
          ->disable_flag_override()
          ->excludes(flags.trace)
          ->excludes(flags.requests);
  c->add_option("--attainment", o->attainment, "How many are enough")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str()
      ->needs(find);
  add_count(*c, "--timeout", o->timeout, 1, 86400, "Seconds that an answer may take; then it has failed");
  add_count(*c, "--max-in-flight", o->max_in_flight, 1, 60000,
            "Requests beyond so many at once are not sent, and told");
  c->add_option("--json", o->json, "Writes all requests and figures")->type_name("FILE");
  c->add_option("--plot", o->plot, "Draws how times to the first token and per token are distributed (SVG)")
      ->type_name("FILE");
  c->callback([o, &chosen] {
    if (o->find_goodput && !o->what.seconds) o->what.seconds = 10.0f;
    if (!o->what.requests && !o->what.seconds && o->what.trace.empty()) o->what.requests = 100;
    if (o->find_goodput && !o->slo_ttft && !o->slo_tpot)
      throw CLI::ValidationError("--find-goodput", "needs --slo-ttft or --slo-tpot: what is good enough?");
    if (o->endpoint == "chat" && o->prompts.vocabulary > 0)
      throw CLI::ValidationError("--vocabulary", "is for --endpoint completions: chats are text");
    o->what.seed = o->prompts.seed;
    chosen = [o](streams io) { return workload::run(*o, io); };
  });
}

}  // namespace cokv::cli
