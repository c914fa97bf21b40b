// What a worker of a model in parts reads of a checkpoint, and by what names it and the first of them know that it is the same.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

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

// A checkpoint of one file, of which bytes can be changed.
struct copied {
  explicit copied(const std::filesystem::path& from) : bytes(slurp(from / "model.safetensors")) {
    for (auto* name : {"config.json", "generation_config.json"}) dir.write(name, slurp(from / name));
    write();
    const auto file = weights::open(dir.path());
    std::uint64_t header;
    std::memcpy(&header, bytes.data(), sizeof header);
    const std::byte* data = nullptr;
    for (auto& [name, t] : file.tensors())
      if (!data || t.bytes.data() < data) data = t.bytes.data();
    for (auto& [name, t] : file.tensors())
      all.push_back({name, 8 + header + static_cast<std::size_t>(t.bytes.data() - data), t.type, t.shape.size()});
  }
  void write() const { dir.write("model.safetensors", bytes); }

  struct tensor {
    std::string name;
    std::size_t at;
    dtype type;
    std::size_t dimensions;
  };
  temp_dir dir;
  std::string bytes;
  std::vector<tensor> all;
};

}  // namespace

TEST_CASE("stage names: a bit of any tensor of any family renames what computes with it, and all of the model") {
  for (auto& family : families()) {
    if (family.name == "llama") continue;  // several files
    INFO(family.name);
    copied c(family.folder);
    const auto before = part(c.dir.path(), {})->names();
    CHECK(before.whole == load_model(family.folder, {.compute = dtype::f32})->fingerprint());
    REQUIRE(before.stages.size() == 2);
    CHECK(before.stages[0] != before.stages[1]);
    std::size_t of_first = 0, of_second = 0, of_both = 0;
    for (auto& t : c.all) {
      INFO(t.name);
      c.bytes[t.at] ^= 1;
      c.write();
      const auto after = part(c.dir.path(), {})->names();
      c.bytes[t.at] ^= 1;
      CHECK(after.whole != before.whole);
      const bool first = after.stages[0] != before.stages[0], second = after.stages[1] != before.stages[1];
      CHECK((first || second));
      if (t.dimensions < 2) CHECK((first && second));  // vectors are everybody's
      if (t.dimensions < 2) continue;
      of_first += first && !second, of_second += second && !first, of_both += first && second;
    }
    CHECK(of_first > 0);
    CHECK(of_second > 0);
    CHECK(of_both <= 1);  // an embedding that is the output matrix as well
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
  std::memset(c.bytes.data() + damaged->at, 0xff, size_of(damaged->type));  // not a number in any of the types
  c.write();
  for (auto who : {worker{0, 0}, worker{0, 1}})
    CHECK(told(who).ends_with(damaged->name + ": element 0 is not a number"));
  for (auto who : {worker{1, 0}, worker{1, 1}}) CHECK(told(who).empty());
}
