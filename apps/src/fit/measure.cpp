#include "fit/measure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "cokv/engine/engine.hpp"
#include "cokv/kvstream/peer_link.hpp"
#include "cokv/runtime/result.hpp"
#include "cokv/runtime/with.hpp"
#include "doctor/probe.hpp"

namespace cokv::fit {
namespace {

using namespace std::chrono_literals;
using points = std::vector<std::pair<double, double>>;

// What is told by two measurements is told by so many pairs of them: a machine is a tenth faster or slower from one second to the next.
constexpr int turns_of_noise = 3;

constexpr double measured_for = 0.5;  // seconds of steps, of each number of sequences in a pipeline

// How processes find cores differs from start to start, and stays so: pipelines are started so often.
constexpr int starts = 5;

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

// More never take less: what noise says otherwise is left out.
curve ascending(points all) {
  for (std::size_t i = 1; i < all.size(); ++i) all[i].second = std::max(all[i].second, all[i - 1].second);
  return curve(std::move(all));
}

// Seconds of a step by itself.
struct steps_alone {
  double prompt = 0, answer = 0;
};

awaitable<steps_alone> alone(subject& it, std::uint32_t answer) {
  const double prompt = (co_await it.steps.prompt(it.beside_prompt, 0)).all();
  co_return steps_alone{.prompt = prompt + co_await it.steps.late_prompt(it.beside_prompt, first_pause),
                        .answer = co_await it.steps.served_answers(1, answer / 2)};
}

awaitable<pipeline_times> pipeline_of(const options& o, subject& it, std::uint32_t answer,
                                      std::span<const std::unique_ptr<busy_worker>> others) {
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
    out = co_await first.times(it.beside_prompt, answer);
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

// Of 2, 3, .. workers, in multiples of the same steps by themselves, which are timed before and behind them each time they are started:
// the machine is not as fast each minute. The medians.
awaitable<void> pipelines(const options& o, subject& it, std::span<const std::unique_ptr<busy_worker>> others,
                          std::function<void(std::string_view)> progress, profile& p) {
  const double one = co_await it.steps.served_answers(1, 0);
  const auto answer = std::min(static_cast<std::uint32_t>(std::clamp(measured_for / one, 12.0, 60.0)),
                               it.what->config().max_positions / 2);
  std::vector<std::vector<pipeline_times>> all(others.size());  // [workers - 2][start]
  for (int start = 1; start <= starts; ++start) {
    progress(fmt::format("pipelines, start {} of {}", start, starts));
    const auto before = co_await alone(it, answer);
    for (std::size_t n = 1; n <= others.size(); ++n)
      all[n - 1].push_back(co_await pipeline_of(o, it, answer, others.first(n)));
    const auto behind = co_await alone(it, answer);
    for (auto& each : all) {
      each.back().first /= (before.prompt + behind.prompt) / 2;
      for (auto& gap : each.back().gaps) gap /= (before.answer + behind.answer) / 2;
    }
  }
  const auto median_of = [&](std::size_t n, std::string_view what, auto of) {
    std::vector<double> each;
    for (const auto& t : all[n - 1]) each.push_back(of(t));
    const auto [least, most] = std::ranges::minmax(each);
    const auto middle = middle_of(std::move(each));
    progress(fmt::format("a pipeline of {}, {}: {:.2f} steps by themselves; {:.2f} to {:.2f}", n + 1, what, middle,
                         least, most));
    return middle;
  };
  p.first_tokens = it.beside_prompt;
  for (std::size_t n = 1; n <= others.size(); ++n) {
    p.pipelines_first.push_back(median_of(n, "a prompt", [](auto& t) { return t.first; }));
    auto& mine = p.pipelines.emplace_back();
    for (std::size_t i = 0; i <= n; ++i)
      mine.push_back(median_of(n, fmt::format("{} at once", i + 1), [&](auto& t) { return t.gaps[i]; }));
  }
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

awaitable<profile> measure(const options& o, std::span<const std::unique_ptr<busy_worker>> others,
                           std::function<void(std::string_view)> progress) {
  const auto ex = co_await asio::this_coro::executor;
  auto it = subject::open(ex, o);
  const auto& config = it.what->config();
  const auto here = doctor::probe();
  const auto kv_bytes =
      static_cast<std::uint32_t>(2 * config.kv_heads * config.head_dim * size_of(it.what->compute_type()));
  profile p{.machine = name_of(it.where, here),
            .model = o.model.random_weights.empty() ? o.model.dir : o.model.random_weights,
            .dtype = o.dtype,
            .source = {},
            .cores = static_cast<std::uint32_t>(here.cores),
            .threads = o.threads ? o.threads : static_cast<std::uint32_t>(here.cores),
            .layers = config.layers,
            .hidden = config.hidden,
            .max_positions = config.max_positions,
            .kv_bytes = kv_bytes};

  const auto full = std::max(1u, config.layers - 1);  // layers that are timed together
  progress("prompts");
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
  p.prompts = ascending(std::move(prompts));
  p.prompts_end = ascending(std::move(prompts_end));

  progress("answers");
  points answers, answers_end;
  for (auto n : powers_up_to(it.most_answers)) {
    const auto t = co_await it.steps.answers(n, 0);
    answers.emplace_back(n, t.layers / full);
    answers_end.emplace_back(n, t.end);
  }
  p.answers = ascending(std::move(answers));
  p.answers_end = ascending(std::move(answers_end));
  double product = 0, square = 0;
  for (auto n : {1u, 4u, 16u}) {
    if (n > it.most_answers) break;
    const double x = 1. * n * it.context,
                 y = (co_await it.steps.answers(n, it.context)).layers / full - p.answers.at(n);
    product += x * y, square += x * x;
  }
  p.answer_pair = std::max(0.0, product / square);

  for (std::size_t n = 1; n <= others.size(); ++n) {
    progress("beside " + std::to_string(n) + " others");
    const auto so_many = others.first(n);
    std::vector<double> prompts_more, answers_more;
    for (int turn = 0; turn < turns_of_noise; ++turn) {
      const double prompt = (co_await it.steps.prompt(it.beside_prompt, 0)).all();
      const double answer = (co_await it.steps.answers(it.beside_answers, it.beside_context)).all();
      for (auto& w : so_many) w->prompts();
      prompts_more.push_back((co_await it.steps.prompt(it.beside_prompt, 0)).all() / prompt);
      for (auto& w : so_many) w->answers();
      answers_more.push_back((co_await it.steps.answers(it.beside_answers, it.beside_context)).all() / answer);
      for (auto& w : so_many) w->idle();
    }
    const double slow_prompt = middle_of(std::move(prompts_more)), slow_answer = middle_of(std::move(answers_more));
    p.prompts_beside.push_back(std::max(p.prompts_beside.back(), slow_prompt));
    p.answers_beside.push_back(std::max(p.answers_beside.back(), slow_answer));
  }

  progress("behind a pause");
  points prompts_idle, answers_idle;
  for (auto pause : {1ms, 5ms, 25ms, 125ms, 500ms, 1000ms}) {
    const double x = std::chrono::duration<double>(pause).count();
    prompts_idle.emplace_back(x, co_await it.steps.late_prompt(it.beside_prompt, pause));
    answers_idle.emplace_back(x, co_await it.steps.late_answers(it.beside_answers, it.beside_context, pause));
  }
  p.prompts_idle = ascending(std::move(prompts_idle));
  p.answers_idle = ascending(std::move(answers_idle));

  progress("links");
  const auto link = co_await link_speed(ex);
  p.link_bytes_per_second = link.bytes_per_second;
  p.link_seconds = link.seconds;
  progress("the engine");
  {
    const auto few = std::min(it.most_answers, 16u), tokens = std::min(config.max_positions / 2, 40u);
    engine e(ex, it.where, it.what, std::nullopt,
             {.kv_blocks = few * (tokens / meter::block_tokens + 2),
              .max_sequence = std::min(config.max_positions, tokens + 2),
              .prefix_cache = false});
    // In turns with the same steps by themselves: what a machine is slower by from one minute to the next is more than this.
    const auto own = [&](std::uint32_t sequences) -> awaitable<double> {
      std::vector<double> more;
      for (int turn = 0; turn < 7; ++turn)
        more.push_back(co_await engine_gap(e, sequences, tokens) -
                       co_await it.steps.served_answers(sequences, tokens / 2));
      co_return std::max(0.0, middle_of(std::move(more)));
    };
    p.step = co_await own(1);
    p.token = std::max(0.0, (co_await own(few) - p.step) / few);
    co_await e.async_drain();
  }
  const auto in_a_pipeline = others.first(std::min<std::size_t>(others.size(), config.layers - 1));
  if (!in_a_pipeline.empty()) co_await pipelines(o, it, in_a_pipeline, progress, p);
  progress("copies");
  p.copy_bytes_per_second = co_await copy_speed(it.where);
  co_return p;
}

}  // namespace cokv::fit
