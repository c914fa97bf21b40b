// What a worker of a model in parts reads of a checkpoint, and by what names it and the first of them know that it is the same.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>

#include "cokv/engine/model.hpp"
#include "cokv/engine/weights.hpp"
#include "cokv/runtime/error.hpp"
#include "engine/files.hpp"
#include "engine/golden.hpp"

using namespace cokv;
using namespace cokv::test;

namespace {

const topology two_of_two(2, 2);

std::shared_ptr<model> part(const std::filesystem::path& of, worker who, load_progress progress = {}) {
  return load_model(of, {.compute = dtype::f32, .progress = std::move(progress), .part = {two_of_two, who}});
}

// A checkpoint, of one file or several, of which bytes can be changed.
struct copied {
  struct tensor {
    std::string name;
    std::string file;
    std::size_t at;
    dtype type;
    std::size_t dimensions;
  };

  explicit copied(const std::filesystem::path& from) {
    for (auto& entry : std::filesystem::directory_iterator(from)) {
      const auto name = entry.path().filename().string();
      dir.write(name, slurp(entry.path()));
      if (entry.path().extension() == ".safetensors") add(name);
    }
  }
  void change(const tensor& t, const std::function<void(char*)>& how) {
    auto bytes = slurp(dir / t.file);
    how(bytes.data() + t.at);
    dir.write(t.file, bytes);
  }

  temp_dir dir;
  std::vector<tensor> all;

 private:
  void add(const std::string& file) {
    const auto bytes = slurp(dir / file);
    std::uint64_t header;
    std::memcpy(&header, bytes.data(), sizeof header);
    const auto view = weights::open_file(dir / file);
    const std::byte* data = nullptr;
    for (auto& [name, t] : view.tensors())
      if (!data || t.bytes.data() < data) data = t.bytes.data();
    for (auto& [name, t] : view.tensors())
      all.push_back({name, file, 8 + header + static_cast<std::size_t>(t.bytes.data() - data), t.type, t.shape.size()});
  }
};

// Which of three stages of a layer each computes with a matrix, by what checkpoints call it.
std::set<std::uint32_t> stages_of(const std::string& name, bool tied) {
  for (const std::string before : {"layers.", "h."})
    if (const auto at = name.find(before); at != name.npos && (at == 0 || name[at - 1] == '.'))
      return {static_cast<std::uint32_t>(std::stoul(name.substr(at + before.size())))};
  if (name.starts_with("lm_head") || name.find("project_out") != name.npos) return {2};
  for (const std::string table : {"embed_tokens", "wte", "word_embeddings"})
    if (tied && name.find(table) != name.npos) return {0, 2};
  return {0};
}

}  // namespace

TEST_CASE(
    "stage names: a bit of any tensor of any family renames the stages that compute with it, and all of the model") {
  for (auto& family : families()) {
    INFO(family.name);
    copied c(family.folder);
    const auto names = [&] {
      return load_model(c.dir.path(), {.compute = dtype::f32, .part = {topology(3, 1), {}}})->names();
    };
    const auto before = names();
    CHECK(before.whole == load_model(family.folder, {.compute = dtype::f32})->fingerprint());
    REQUIRE(before.stages.size() == 3);
    const bool tied = load_model_config(family.folder).tie_embeddings;
    std::set<std::uint32_t> seen;
    for (auto& t : c.all) {
      INFO(t.name);
      const auto flip = [](char* at) { *at = static_cast<char>(*at ^ 1); };
      c.change(t, flip);
      const auto after = names();
      c.change(t, flip);
      CHECK(after.whole != before.whole);
      std::set<std::uint32_t> changed;
      for (std::uint32_t s = 0; s < 3; ++s)
        if (after.stages[s] != before.stages[s]) changed.insert(s);
      CHECK(changed == (t.dimensions < 2 ? std::set<std::uint32_t>{0, 1, 2} : stages_of(t.name, tied)));
      if (t.dimensions > 1) seen.insert(changed.begin(), changed.end());
    }
    CHECK(seen.size() == 3);
  }
}

TEST_CASE("stage names: each worker finds its stage's, and reads no more than that") {
  for (auto& family : families()) {
    INFO(family.name);
    const auto all_bytes = weights::open(family.folder).bytes();
    const auto told = part(family.folder, {})->names();
    for (std::uint32_t n = 0; n < 4; ++n) {
      const auto who = two_of_two.at(n);
      std::uint64_t read = 0, total = 0;
      const auto m = part(family.folder, who, [&](std::uint64_t done, std::uint64_t of) { read = done, total = of; });
      CHECK(m->own_stage() == told.stages[who.stage]);
      CHECK(read == total);
      if (n == 0) {
        CHECK(total == all_bytes);
        continue;
      }
      CHECK(total < all_bytes);
      CHECK(m->fingerprint() == id256());
      CHECK(m->names().stages[1 - who.stage] == id256());
    }
    CHECK(load_model(family.folder, {.compute = dtype::bf16, .part = {topology(1, 2), {0, 1}}})->own_stage() ==
          load_model(family.folder, {.compute = dtype::f32, .part = {topology(1, 2), {}}})->own_stage());
  }
}

TEST_CASE("stage names: they go by how the model is cut, and where a stage begins") {
  const auto names = [](topology split) {
    return load_model(tiny(), {.compute = dtype::f32, .part = {std::move(split), {}}})->names();
  };
  const auto equal = names(topology(2, 1)), other = names(topology(2, 1, 0, {0, 3}));
  CHECK(equal.whole == other.whole);
  CHECK(equal.stages[0] != other.stages[0]);
  CHECK(equal.stages[1] != other.stages[1]);
  CHECK(names(topology(2, 4)).stages == equal.stages);  // its ranks read the same
  // What is of no file has one name for all of it.
  const auto random = random_model(tiny() / "config.json", {.part = {two_of_two, {1, 1}}});
  CHECK(random->fingerprint() == random_model(tiny() / "config.json")->fingerprint());
  CHECK(random->own_stage() == random->fingerprint());
}

TEST_CASE("stage names: what is not finite is refused by who reads it") {
  copied c(source_dir() / "tests/engine/fixtures/families/qwen2");
  const auto told = [&](worker who) {
    try {
      part(c.dir.path(), who);
    } catch (const config_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const auto damaged =
      std::ranges::find(c.all, std::string("model.layers.0.mlp.down_proj.weight"), &copied::tensor::name);
  REQUIRE(damaged != c.all.end());
  c.change(*damaged,
           [&](char* at) { std::memset(at, 0xff, size_of(damaged->type)); });  // no number in any of the types
  for (auto who : {worker{0, 0}, worker{0, 1}})
    CHECK(told(who).ends_with(damaged->name + ": element 0 is not a number"));
  for (auto who : {worker{1, 0}, worker{1, 1}}) CHECK(told(who).empty());
}
