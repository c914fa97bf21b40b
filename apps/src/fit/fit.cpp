#include "fit/fit.hpp"

#include <spdlog/spdlog.h>

#include <optional>

#include "cli/result_file.hpp"
#include "cokv/runtime/detail/machine_memory.hpp"
#include "fit/measure.hpp"
#include "fit/sheet.hpp"

namespace cokv::fit {

int run(const options& o, cli::streams io) {
  cli::result_file out("--out", o.out);
  // Before there are others, each of which would say the same.
  const auto config = load_config(o.model);
  const auto give = [&](const profile& p) {
    if (out.wanted())
      out.write(to_text(p));
    else
      io.out << to_text(p);
    return 0;
  };
  if (!o.sheet.empty()) return give(profile_of_sheet(o, config, sheet_of(o.sheet)));
  if (o.device == "cpu")  // each has all of them, and a pipeline of theirs another time
    detail::check_memory_for(
        {{"--workers: weights", (o.workers + (o.workers > 1)) * weight_bytes(config, *parse_dtype(o.dtype))}});
  std::vector<std::unique_ptr<busy_worker>> others;
  std::optional<reader> outside;
  if (o.workers > 1) outside.emplace();
  for (std::uint32_t n = 1; n < o.workers; ++n) others.push_back(std::make_unique<busy_worker>(o));
  for (auto& w : others) w->ready();
  asio::io_context context(1);
  std::exception_ptr failed;
  profile p;
  asio::co_spawn(
      context,
      measure(o, others, outside ? &*outside : nullptr, [](std::string_view what) { spdlog::info("fit: {}", what); }),
      [&](std::exception_ptr e, profile got) {
        failed = e;
        p = std::move(got);
      });
  context.run();
  if (failed) std::rethrow_exception(failed);
  return give(p);
}

}  // namespace cokv::fit
