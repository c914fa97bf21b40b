#include "support/co_test.hpp"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <stdexcept>

namespace cokv::test {
namespace {

std::string describe(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an unknown exception";
  }
}

std::string name(sim_context::outcome outcome) {
  switch (outcome) {
    case sim_context::outcome::done:
      return "done";
    case sim_context::outcome::suspended:
      return "suspended (deadlock)";
    case sim_context::outcome::reached:
      return "reached";
    case sim_context::outcome::livelock:
      return "livelock";
    case sim_context::outcome::stopped:
      return "stopped";
  }
  return "?";
}

std::optional<std::uint64_t> number_in(const char* variable) {
  const char* text = std::getenv(variable);
  if (!text || !*text) return {};
  const bool hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
  const char *first = text + (hex ? 2 : 0), *last = text + std::strlen(text);
  std::uint64_t number = 0;
  const auto [end, ec] = std::from_chars(first, last, number, hex ? 16 : 10);
  if (ec != std::errc() || end != last || first == last)
    throw std::invalid_argument(std::string(variable) + "=" + text + ": not a number of 64 bits, decimal or 0x...");
  return number;
}

std::optional<std::uint64_t> chosen_seed() { return number_in("COKV_SEED"); }

// The build folder that the program is in, as it was called: ".../build/asan".
std::string build_folder() {
  const std::string program = program_invocation_name;
  const auto tests = program.rfind("/tests/");
  return tests == program.npos ? std::string() : program.substr(0, tests);
}

}  // namespace

std::vector<std::uint64_t> seeds(std::size_t count, std::uint64_t first) {
  if (auto one = chosen_seed()) return {*one};
  // The sweeps over one seed stay as they are; who runs more seeds than others goes on doing so.
  if (auto many = number_in("COKV_SEEDS"); many && count > 1)
    count = std::max<std::size_t>(count * *many / seeds_of_a_suite, 1);
  std::vector<std::uint64_t> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = first + i;
  return all;
}

bool one_seed() { return chosen_seed().has_value(); }

std::string replay_command(std::uint64_t seed) {
  std::string test = doctest::getContextOptions()->currentTest ? doctest::getContextOptions()->currentTest->m_name : "";
  for (std::size_t quote = 0; (quote = test.find('\'', quote)) != test.npos; quote += 4)
    test.replace(quote, 1, "'\\''");
  const auto build = build_folder();
  const bool usual = build.empty() || build.ends_with("build/release");
  return "replay with: scripts/replay " + std::to_string(seed) + " '" + test + "'" + (usual ? "" : " --build " + build);
}

sim_report run_seed(std::uint64_t seed, const co_body& body, const co_options& options) {
  INFO(replay_command(seed));
  sim_report report;
  sim_context context(seed);
  if (options.setup) options.setup(context);
  asio::co_spawn(context.get_executor(), body(context.get_executor()), [&](std::exception_ptr error) {
    report.finished = true;
    if (error) FAIL_CHECK("the body threw: ", describe(error));
  });
  report.outcome = context.run();
  report.hash = context.trace_hash();
  report.steps = context.steps();
  report.time = context.now().time_since_epoch();
  if (!report.finished) FAIL_CHECK("the body never ended: ", name(report.outcome));
  return report;
}

void run_real(const co_body& body) {
  INFO("on the real context");
  bool finished = false;
  asio::io_context context(1);
  asio::co_spawn(context, body(context.get_executor()), [&](std::exception_ptr error) {
    finished = true;
    if (error) FAIL_CHECK("the body threw: ", describe(error));
  });
  context.run_for(std::chrono::minutes(2));  // a hang, not a slow machine
  if (!finished) FAIL_CHECK("the body never ended");
}

void co_test(const co_body& body, const co_options& options) {
  if (options.real && !chosen_seed()) run_real(body);
  for (std::uint64_t seed : seeds(options.seeds)) run_seed(seed, body, options);
}

namespace {

constexpr asio::cancellation_type cancellation_types[] = {
    asio::cancellation_type::terminal, asio::cancellation_type::partial, asio::cancellation_type::total};

enum class swept { cancelled, ended_before, never_ended };

swept cancel_after(std::size_t step, std::uint64_t seed, asio::cancellation_type type, const co_body& body,
                   const co_options& options) {
  INFO("cancelled (type ", static_cast<int>(type), ") after ", step, " steps; ", replay_command(seed));
  bool started = false, finished = false;
  sim_context context(seed);
  if (options.setup) options.setup(context);
  asio::cancellation_signal signal;
  auto wrapped = [&started](const co_body& inner, asio::any_io_executor ex) -> awaitable<void> {
    started = true;
    co_await asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation());
    co_await inner(ex);
  };
  asio::co_spawn(context.get_executor(), wrapped(body, context.get_executor()),
                 asio::bind_cancellation_slot(signal.slot(), [&](std::exception_ptr) { finished = true; }));
  while (!started) context.step();  // co_spawn itself can't be cancelled before it begins
  for (std::size_t i = 0; i < step && !finished; ++i)
    if (!context.step()) break;
  const bool over = finished;
  if (!over) signal.emit(type);
  auto outcome = context.run();
  if (!finished) {
    FAIL_CHECK("the body never ended: ", name(outcome));
    return swept::never_ended;
  }
  return over ? swept::ended_before : swept::cancelled;
}

// Whether the body had ended by then.
bool destroy_after(std::size_t step, std::uint64_t seed, const co_body& body, const co_options& options) {
  bool finished = false;
  sim_context context(seed);
  if (options.setup) options.setup(context);
  asio::co_spawn(context.get_executor(), body(context.get_executor()), [&](std::exception_ptr) { finished = true; });
  for (std::size_t i = 0; i < step && !finished; ++i)
    if (!context.step()) break;
  return finished;
}

// One step of the first `steps`, for a seed that isn't swept.
std::size_t sampled(std::uint64_t seed, std::size_t steps) { return detail::splitmix(seed).below(steps + 1); }

}  // namespace

void cancel_at_every_step(const co_body& body, const co_options& options, std::size_t limit) {
  std::size_t steps = 0;
  for (auto type : cancellation_types)
    for (std::uint64_t seed : seeds(1))
      for (std::size_t step = 0; step < limit; ++step) {
        const auto came = cancel_after(step, seed, type, body, options);
        if (came == swept::never_ended) return;
        if (came == swept::ended_before) break;
        steps = std::max(steps, step);
      }
  if (one_seed()) return;
  for (std::uint64_t seed : seeds(options.seeds, 2))
    cancel_after(sampled(seed, steps), seed, cancellation_types[seed % 3], body, options);
}

void destroy_at_every_step(const co_body& body, const co_options& options, std::size_t limit) {
  std::size_t steps = 0;
  for (std::uint64_t seed : seeds(1))
    for (std::size_t step = 0; step < limit && !destroy_after(step, seed, body, options); ++step) steps = step;
  if (one_seed()) return;
  for (std::uint64_t seed : seeds(options.seeds, 2)) destroy_after(sampled(seed, steps), seed, body, options);
}

}  // namespace cokv::test
