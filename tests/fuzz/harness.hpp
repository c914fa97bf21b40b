// The fuzzed parsers and what must hold of them, one function a target. Each takes arbitrary bytes; what does not hold
// is thrown as `broken`. libFuzzer calls them (entry.cpp), and in every preset a test replays the corpus (replay.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <string_view>

namespace cokv::fuzz {

using bytes = std::span<const std::byte>;

void frame(bytes in);   // frame_parser
void stream(bytes in);  // stream_parser, and stream_writer with what it read
void link(bytes in);    // the links' parser and hello
void disk(bytes in);    // the index of the disk tier's files
void http(bytes in);    // the HTTP server's parsers
void places(bytes in);  // block_places, of reads and of writes
void text(bytes in);    // topologies, names, element types, endpoints, URLs

void config(bytes in);       // config.json, and behind a 0 generation_config.json
void safetensors(bytes in);  // a whole file
void index(bytes in);        // of a checkpoint's shards
void tokens(bytes in);       // tokenizer.json, @ for a vocabulary of bytes, and behind a 0 a text
void pattern(bytes in);      // a split pattern, and behind a 0 a text
void chat(bytes in);         // a chat template, and behind a 0 what the user says

struct broken : std::logic_error {
  using std::logic_error::logic_error;
};

inline void require(bool holds, const char* what) {
  if (!holds) throw broken(what);
}

// How often a state was reached, by a name that outlives the program's use of it.
inline std::map<std::string_view, std::uint64_t>& reached() {
  static std::map<std::string_view, std::uint64_t> counts;
  return counts;
}

inline void reach(std::string_view state) { ++reached()[state]; }

}  // namespace cokv::fuzz
