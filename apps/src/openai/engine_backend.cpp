#include "openai/engine_backend.hpp"

#include "cokv/runtime/result.hpp"

namespace cokv::openai {
namespace {

class engine_answer final : public answer {
 public:
  explicit engine_answer(generation g) : generation_(std::move(g)) {}
  awaitable<result<generated>> next() override { co_return co_await generation_.async_next(as_result); }
  const generation_report& report() const override { return generation_.report(); }

 private:
  generation generation_;
};

}  // namespace

std::unique_ptr<answer> answer_of(generation g) { return std::make_unique<engine_answer>(std::move(g)); }

std::vector<token_id> engine_backend::encode(std::string_view text, encode_options how) const {
  return text_.encode(text, how);
}

std::uint32_t engine_backend::context() const { return engine_.max_sequence(); }
std::uint32_t engine_backend::vocabulary() const { return engine_.running().config().vocab; }

result<std::unique_ptr<answer>> engine_backend::submit(generation_request request) {
  auto made = engine_.submit(std::move(request));
  if (!made) return made.error();
  return answer_of(std::move(*made));
}

}  // namespace cokv::openai
