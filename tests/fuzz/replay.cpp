// The fuzz targets on their corpus, which has to reach what the targets are there for.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz/harness.hpp"

using namespace cokv;

namespace {

void replay(const std::string& target, void (*run)(fuzz::bytes), std::initializer_list<const char*> states) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(COKV_SOURCE_DIR "/tests/fuzz/corpus/" + target))
    files.push_back(entry.path());
  std::ranges::sort(files);
  REQUIRE_MESSAGE(!files.empty(), "no corpus of " << target);
  fuzz::reached().clear();
  run({});
  for (const auto& path : files) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> data(std::istreambuf_iterator<char>(file), {});
    CAPTURE(path.string());
    CHECK_NOTHROW(run(std::as_bytes(std::span(data))));
  }
  for (const auto* state : states)
    CHECK_MESSAGE(fuzz::reached()[state] > 0, "the corpus does not reach " << std::string(state));
}

}  // namespace

TEST_CASE("fuzz: frames of the corpus are read the same however they are cut") {
  replay("frame", fuzz::frame,
         {"frame: header", "frame: intact", "frame: damaged payload", "frame: damaged header", "frame: not a frame",
          "frame: too large", "frame: cut short", "frame: filled"});
}

TEST_CASE("fuzz: streams of the corpus are read the same however they are cut, and written again") {
  replay("stream", fuzz::stream,
         {"stream: begun", "stream: segment", "stream: arrived", "stream: damaged", "stream: missing", "stream: layer",
          "stream: ended", "stream: acked", "stream: error of the peer", "stream: refused", "stream: filled",
          "stream: retold whole", "stream: retold in part"});
}

TEST_CASE("fuzz: link frames of the corpus are read the same however they are cut") {
  replay("link", fuzz::link,
         {"link: bare frame", "link: intact", "link: unsealed", "link: damaged payload", "link: dropped",
          "link: dropped halfway", "link: refused header", "link: too large", "link: cut short", "link: hello",
          "link: no hello", "link: layout", "link: no layout", "link: in place", "link: filled", "link: places",
          "link: no places", "link: answers", "link: no answers"});
}

TEST_CASE("fuzz: requests of the corpus are answered the same however they are cut") {
  replay("http", fuzz::http,
         {"http: answered", "http: asked to go on", "http: unknown key", "http: no route", "http: too slow",
          "http: body too large", "http: header too large", "http: refused"});
}

TEST_CASE("fuzz: chunks of the corpus are read as far as they are sound, and written again") {
  replay("disk", fuzz::disk,
         {"disk: first", "disk: record", "disk: no record", "disk: removal", "disk: damaged", "disk: sealed",
          "disk: link", "disk: tenant", "disk: of no tenant's time"});
}

TEST_CASE("fuzz: places of the corpus lie in their memory, and are written as they were read") {
  replay("places", fuzz::places,
         {"places: answer", "places: empty answer", "places: no answer", "places: damaged answer",
          "places: some of a write", "places: written", "places: refused write", "places: damaged write"});
}

TEST_CASE("fuzz: a model folder's files of the corpus are taken whole, or refused in a line") {
  replay("config", fuzz::config,
         {"config: taken", "config: taken with generation", "config: refused", "config: refused generation"});
  replay("safetensors", fuzz::safetensors, {"safetensors: tensor", "safetensors: other type", "safetensors: refused"});
  replay("index", fuzz::index, {"index: tensor", "index: refused"});
  replay("tokens", fuzz::tokens, {"tokens: taken", "tokens: encoded", "tokens: refused"});
  replay("pattern", fuzz::pattern, {"pattern: piece", "pattern: refused"});
}

TEST_CASE("fuzz: texts of the corpus are written as they were read") {
  replay("text", fuzz::text,
         {"text: topology", "text: topology with starts", "text: no topology", "text: element type", "text: id",
          "text: endpoint", "text: no endpoint", "text: link URL", "text: HTTP URL", "text: socket URL"});
}

TEST_CASE("fuzz: chat templates of the corpus render text, fail, or are refused in a line") {
  replay("chat", fuzz::chat, {"chat: rendered", "chat: failed", "chat: raised", "chat: refused"});
}
