#include "cokv/engine/model.hpp"
#include "cokv/engine/weights.hpp"
#include "cokv/runtime/error.hpp"
#include "model/llama.hpp"

namespace cokv {

std::shared_ptr<model> load_model(const std::filesystem::path& dir, model_options options) {
  if (options.compute != dtype::bf16 && options.compute != dtype::f32)
    throw config_error("dtype: " + std::string(to_string(options.compute)) + " is not bf16 or f32");
  auto config = load_model_config(dir);
  auto tensors = weights::open(dir);
  auto id = fingerprint(config, tensors, options.progress);
  return make_llama(std::move(config), std::move(tensors), id, options.compute);
}

}  // namespace cokv
