// What is measured for a profile.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "fit/busy_worker.hpp"
#include "fit/meter.hpp"
#include "fit/profile.hpp"
#include "fit/reader.hpp"

namespace cokv::fit {

// The model on its device, and the steps by which workers beside each other are measured.
struct subject {
  // Throws config_error naming the flag.
  static subject open(const asio::any_io_executor& ex, const options& o);

  device where;
  std::shared_ptr<cokv::model> what;
  meter steps;
  std::uint32_t most_tokens, most_answers, context;
  std::uint32_t beside_prompt, beside_answers, beside_context;
  std::uint32_t pipeline_answer = 0;  // tokens
};

// `progress` is told what comes next. The others are ready, and idle; `outside`: where there are any.
awaitable<profile> measure(const options& o, std::span<const std::unique_ptr<busy_worker>> others, reader* outside,
                           std::function<void(std::string_view)> progress);

}  // namespace cokv::fit
