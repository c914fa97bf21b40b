#include "fit/measure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "cokv/engine/engine.hpp"
#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "doctor/probe.hpp"
#include "fit/merged.hpp"

namespace cokv::fit {
namespace {

using namespace std::chrono_literals;
using points = std::vector<std::pair<double, double>>;

// A machine is not as fast each minute, nor its memory as wide to two cores as to one: all of a profile is measured in each of so many
// turns, and each figure is the median of theirs (merged.hpp).
constexpr int turns = 5;

constexpr double measured_for = 0.5;  // seconds of steps of an answer in a pipeline

double since(clock& time, time_point begun) { return std::chrono::duration<double>(time.now() - begun).count(); }

std::vector<std::uint32_t> powers_up_to(std::uint32_t most) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t n = 1; n < most; n *= 2) out.push_back(n);
  out.push_back(most);
  return out;
}

// Products take their rows sixteen, or more, at a time, and prompts are of any length: behind each power the number that begins with
// the next rows, so that what is between is on a line through the middle of the steps, not along their feet.
std::vector<std::uint32_t> with_the_next(const std::vector<std::uint32_t>& powers) {
  constexpr std::uint32_t rows_at_once = 16;
  std::vector<std::uint32_t> out;
  for (auto n : powers) {
    out.push_back(n);
    if (n >= rows_at_once && n != powers.back()) out.push_back(n + 1);
  }
  return out;
}

awaitable<pipeline_times> pipeline_of(const options& o, subject& it,
                                      std::span<const std::unique_ptr<busy_worker>> others, reader* outside) {
  stage_place at{.urls = free_doors(others.size() + 1)};
  pipeline_lead first(co_await asio::this_coro::executor, o, it.where, at.urls);
  for (auto& w : others) {
    ++at.stage;
    w->enter(at);
  }
  for (auto& w : others) w->ready();
  pipeline_times out;
  std::exception_ptr failed;
  try {
    out = co_await first.times(it.beside_prompt, it.pipeline_answer, [outside](question q) { return outside->ask(q); });
  } catch (const config_error&) {
    failed = std::current_exception();
  }
  if (failed) {
    for (auto& w : others) w->check();  // who began it knows more
    std::rethrow_exception(failed);
  }
  for (auto& w : others) w->ready();
  co_return out;
}

// From the host's memory to the device's.
awaitable<double> copy_speed(device where) {
  constexpr std::size_t bytes = 64 << 20;
  auto& time = clock::of(where.get_executor());
  auto from = where.allocate(bytes, memory_kind::pinned), to = where.allocate(bytes);
  auto copies = where.make_stream({.name = "copies"});
  if (!from || !to || !copies) throw config_error("--device: no memory to copy");
  double best = 0;
  for (int i = 0; i < 8; ++i) {
    const auto begun = time.now();
    if (auto ec = copies->copy(*to, *from)) throw boost::system::system_error(ec);
    co_await copies->record().async_wait();
    best = std::max(best, bytes / since(time, begun));
  }
  co_return best;
}

struct link_figures {
  double bytes_per_second = 0, seconds = 0;
};

// Both ends are of this process, and one thread: what each of two processes would do, one after the other.
awaitable<link_figures> link_speed(asio::any_io_executor ex) {
  window_table windows(ex);
  auto door = link_listener::listen(windows, "tcp://127.0.0.1:0").value();
  peer_link here, there;
  auto met = co_await with(task_group{}, [&](task_group& group) {
    group.spawn([&]() -> awaitable<void> { there = co_await door.async_accept(); });
    group.spawn([&]() -> awaitable<void> { here = co_await async_connect(windows, door.url()); });
  });
  if (!met) throw boost::system::system_error(met.error());
  auto& time = clock::of(ex);
  link_figures out;
  constexpr int turns = 500;
  auto ping = co_await with(task_group{}, [&](task_group& group) {
    group.spawn([&]() -> awaitable<void> {
      for (int i = 0; i < turns; ++i) co_await there.async_send(co_await there.async_receive());
    });
    group.spawn([&]() -> awaitable<void> {
      const auto begun = time.now();
      for (int i = 0; i < turns; ++i) {
        co_await here.async_send(link_message(64));
        (void)co_await here.async_receive();
      }
      out.seconds = since(time, begun) / (2 * turns);
    });
  });
  if (!ping) throw boost::system::system_error(ping.error());
  constexpr std::size_t bytes = 32 << 20;
  auto to = windows.expose({buffer::host(bytes)}, window_access::put).value();
  const auto from = buffer::host(bytes);
  for (int i = 0; i < 6; ++i) {
    const auto begun = time.now();
    co_await async_flush(from, here.to(to.ref()), 0, {});
    out.bytes_per_second = std::max(out.bytes_per_second, bytes / since(time, begun));
  }
  here.close();
  co_return out;
}

std::string name_of(const device& d, const doctor::facts& here) {
  constexpr std::string_view begins = "cuda:";
  std::size_t nth = 0;
  if (!d.name().starts_with(begins)) return here.cpu_model;
  const auto number = d.name().substr(begins.size());
  std::from_chars(number.data(), number.data() + number.size(), nth);
  return nth < here.cuda_devices.size() ? here.cuda_devices[nth].name : std::string(d.name());
}

// What workers beside this one make its steps longer by.
awaitable<void> beside(subject& it, std::span<const std::unique_ptr<busy_worker>> others, profile& p) {
  for (std::size_t n = 1; n <= others.size(); ++n) {
    const auto so_many = others.first(n);
    const double prompt = (co_await it.steps.prompt(it.beside_prompt, 0)).all();
    const double answer = (co_await it.steps.answers(it.beside_answers, it.beside_context)).all();
    for (auto& w : so_many) w->prompts();
    p.prompts_beside.push_back((co_await it.steps.prompt(it.beside_prompt, 0)).all() / prompt);
    for (auto& w : so_many) w->answers();
    p.answers_beside.push_back((co_await it.steps.answers(it.beside_answers, it.beside_context)).all() / answer);
    for (auto& w : so_many) w->idle();
  }
}

// What the engine takes for itself: each time beside the same steps without it, as what a machine is slower by from one second to the
// next is more than this.
awaitable<void> own_share(subject& it, profile& p) {
  const auto few = std::min(it.most_answers, 16u), tokens = std::min(it.what->config().max_positions / 2, 40u);
  engine e(co_await asio::this_coro::executor, it.where, it.what, std::nullopt,
           {.kv_blocks = few * (tokens / meter::block_tokens + 2),
            .max_sequence = std::min(it.what->config().max_positions, tokens + 2),
            .prefix_cache = false});
  const auto own = [&](std::uint32_t sequences, int times) -> awaitable<double> {
    std::vector<double> more;
    while (times-- > 0)
      more.push_back(co_await engine_gap(e, sequences, tokens) -
                     co_await it.steps.served_answers(sequences, tokens / 2));
    co_return middle_of(std::move(more));
  };
  p.step = co_await own(1, 3);
  p.token = (co_await own(few, 1) - p.step) / few;
  co_await e.async_drain();
}

// As it is measured: differences may be below 0, and more may take less.
awaitable<profile> one_turn(const options& o, subject& it, std::span<const std::unique_ptr<busy_worker>> others,
                            reader* outside) {
  const auto ex = co_await asio::this_coro::executor;
  const auto& config = it.what->config();
  const auto here = doctor::probe();
  profile p{
      .machine = name_of(it.where, here),
      .model = o.model.random_weights.empty() ? o.model.dir : o.model.random_weights,
      .dtype = o.dtype,
      .source = {},
      .cores = static_cast<std::uint32_t>(here.cores),
      .threads = o.threads ? o.threads : static_cast<std::uint32_t>(here.cores),
      .layers = config.layers,
      .hidden = config.hidden,
      .max_positions = config.max_positions,
      .kv_bytes = static_cast<std::uint32_t>(2 * config.kv_heads * config.head_dim * size_of(it.what->compute_type()))};

  const auto full = std::max(1u, config.layers - 1);  // layers that are timed together
  const auto chunk = std::min(256u, it.most_tokens);
  const double behind =
      (co_await it.steps.prompt(chunk, it.context)).layers - (co_await it.steps.prompt(chunk, 0)).layers;
  p.prompt_pair = std::max(0.0, behind / (1. * chunk * it.context) / full);
  points prompts, prompts_end;
  for (auto n : with_the_next(powers_up_to(it.most_tokens))) {
    const auto t = co_await it.steps.prompt(n, 0);
    // What its own tokens look at is told apart.
    prompts.emplace_back(n, std::max(0.1 * t.layers, t.layers - full * p.prompt_pair * n * (n + 1.) / 2) / full);
    prompts_end.emplace_back(n, t.end);
  }
  p.prompts = curve(std::move(prompts));
  p.prompts_end = curve(std::move(prompts_end));

  points answers, answers_end;
  for (auto n : powers_up_to(it.most_answers)) {
    const auto t = co_await it.steps.answers(n, 0);
    answers.emplace_back(n, t.layers / full);
    answers_end.emplace_back(n, t.end);
  }
  p.answers = curve(std::move(answers));
  p.answers_end = curve(std::move(answers_end));
  double product = 0, square = 0;
  for (auto n : {1u, 4u, 16u}) {
    if (n > it.most_answers) break;
    const double x = 1. * n * it.context,
                 y = (co_await it.steps.answers(n, it.context)).layers / full - p.answers.at(n);
    product += x * y, square += x * x;
  }
  p.answer_pair = product / square;

  co_await beside(it, others, p);

  points prompts_idle, answers_idle;
  for (auto pause : {1ms, 5ms, 25ms, 125ms, 500ms, 1000ms}) {
    const double x = std::chrono::duration<double>(pause).count();
    prompts_idle.emplace_back(x, co_await it.steps.late_prompt(it.beside_prompt, pause));
    answers_idle.emplace_back(x, co_await it.steps.late_answers(it.beside_answers, it.beside_context, pause));
  }
  p.prompts_idle = curve(std::move(prompts_idle));
  p.answers_idle = curve(std::move(answers_idle));

  const auto link = co_await link_speed(ex);
  p.link_bytes_per_second = link.bytes_per_second;
  p.link_seconds = link.seconds;
  co_await own_share(it, p);
  const auto in_a_pipeline = others.first(std::min<std::size_t>(others.size(), config.layers - 1));
  if (!in_a_pipeline.empty()) p.answer_tokens = it.pipeline_answer, p.prompt_tokens = it.beside_prompt;
  for (std::size_t n = 1; n <= in_a_pipeline.size(); ++n) {
    auto took = co_await pipeline_of(o, it, in_a_pipeline.first(n), outside);
    p.pipeline_tokens.push_back(std::move(took.gaps));
    p.pipeline_prompts.push_back(took.first);
  }
  p.copy_bytes_per_second = co_await copy_speed(it.where);
  co_return p;
}

}  // namespace

subject subject::open(const asio::any_io_executor& ex, const options& o) {
  auto where = open_device(ex, o.device, {.threads = static_cast<int>(o.threads)});
  if (!where) throw config_error("--device: " + explain_device(o.device));
  auto what = load(o.model, {.compute = *parse_dtype(o.dtype), .where = *where});
  const auto longest = what->config().max_positions;
  constexpr std::uint32_t fewest = 16;
  if (longest < fewest)
    throw config_error("--model: sequences of " + std::to_string(longest) + " tokens are too short to measure");
  const auto most = std::min(o.max_batched_tokens, longest / 2);
  const auto context = std::min(o.context, longest - most);
  const auto answers = std::min(256u, o.max_batched_tokens);
  const auto each = context / meter::block_tokens + 1;
  const auto blocks = std::max({answers, std::min(16u, answers) * each, (most + context) / meter::block_tokens + 1});
  std::optional<meter> steps;
  try {
    steps.emplace(*where, what, blocks);
  } catch (const config_error& e) {
    throw config_error("--context: " + std::to_string(context) + " tokens: " + e.what());
  }
  return {.where = *where,
          .what = what,
          .steps = std::move(*steps),
          .most_tokens = most,
          .most_answers = answers,
          .context = context,
          .beside_prompt = std::min(256u, most),
          .beside_answers = std::min(4u, answers),
          .beside_context = context / 4};
}

awaitable<profile> measure(const options& o, std::span<const std::unique_ptr<busy_worker>> others, reader* outside,
                           std::function<void(std::string_view)> progress) {
  auto it = subject::open(co_await asio::this_coro::executor, o);
  it.pipeline_answer = std::min(
      static_cast<std::uint32_t>(std::clamp(measured_for / co_await it.steps.served_answers(1, 0), 12.0, 60.0)),
      it.what->config().max_positions / 2);
  std::vector<profile> all;
  while (all.size() < turns) {
    progress(fmt::format("turn {} of {}", all.size() + 1, turns));
    all.push_back(co_await one_turn(o, it, others, outside));
  }
  for (const auto& line : spread_of(all)) progress(line);
  co_return merged(all);
}

}  // namespace cokv::fit
