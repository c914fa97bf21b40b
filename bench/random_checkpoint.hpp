// A checkpoint of random numbers on disk, with the names and shapes that its family asks for: what reading and loading
// one costs does not depend on what a model has learned.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "cokv/engine/model_config.hpp"
#include "model/family.hpp"
#include "model/random_source.hpp"

namespace cokv::bench {

// Writes dir/config.json and dir/model.safetensors; returns the latter's path.
inline std::filesystem::path write_random_checkpoint(const std::filesystem::path& config_json,
                                                     const std::filesystem::path& dir) {
  struct recorder final : tensor_source {
    explicit recorder(dtype type) : from(type, 1) {}
    tensor_view tensor(const std::string& name, std::initializer_list<std::uint64_t> shape) override {
      auto t = from.tensor(name, shape);
      all.emplace_back(name, t);
      return t;
    }
    bool contains(std::string_view) const override { return false; }
    std::string place(const std::string& name) const override { return name + ": "; }
    random_source from;
    std::vector<std::pair<std::string, tensor_view>> all;
  };
  const auto config = load_model_config_file(config_json);
  recorder taken(config.stored_type.value_or(dtype::bf16));
  find_family(config.architecture)->bind(config, taken);

  boost::json::object header;
  std::uint64_t at = 0;
  for (auto& [name, t] : taken.all) {
    const auto type = t.type == dtype::f32 ? "F32" : t.type == dtype::bf16 ? "BF16" : "F16";
    header[name] = {
        {"dtype", type}, {"shape", boost::json::value_from(t.shape)}, {"data_offsets", {at, at + t.bytes.size()}}};
    at += t.bytes.size();
  }
  auto text = boost::json::serialize(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t size = text.size();
  std::filesystem::copy_file(config_json, dir / "config.json", std::filesystem::copy_options::overwrite_existing);
  const auto path = dir / "model.safetensors";
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&size), sizeof size);
  out << text;
  for (auto& [name, t] : taken.all)
    out.write(reinterpret_cast<const char*>(t.bytes.data()), static_cast<std::streamsize>(t.bytes.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
  return path;
}

}  // namespace cokv::bench
