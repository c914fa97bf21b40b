// How fast does text become tokens, tokens text, and logits a token? Each row warms up once, then reports the median of
// its runs; "first" is the run before anything is cached. One thread; times are CPU time, as nothing here waits.
//
//     bench_engine_text [--model DIR] [--bytes N] [--runs N] [--json FILE]
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "cokv/engine/detokenizer.hpp"
#include "cokv/engine/sampler.hpp"
#include "cokv/engine/tokenizer.hpp"
#include "cokv/runtime/error.hpp"

namespace {

using namespace cokv;

struct options {
  std::string model = COKV_SOURCE_DIR "/models/tiny-kjv";
  std::size_t bytes = 1 << 20;
  int runs = 15;
  std::string json;
};

struct row {
  std::string what;
  std::size_t amount;  // bytes or draws of one run
  double first_s, median_s;
};

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double seconds(const std::function<void()>& f) {
  auto start = cpu_seconds();
  f();
  return cpu_seconds() - start;
}

row measure(std::string what, std::size_t amount, int runs, const std::function<void()>& f) {
  row out{std::move(what), amount, seconds(f), 0};
  std::vector<double> all;
  for (int i = 0; i < runs; ++i) all.push_back(seconds(f));
  std::nth_element(all.begin(), all.begin() + runs / 2, all.end());
  out.median_s = all[static_cast<std::size_t>(runs / 2)];
  return out;
}

// Five thousand words made of the model's own tokens, the n-th as often as 1 / n: what prose is to the cache of words.
std::string prose(const tokenizer& tokens, std::size_t bytes) {
  std::vector<std::string> words(5000);
  std::uint64_t draw = 0;
  for (auto& word : words) {
    word = " ";
    for (auto parts = 1 + static_cast<int>(uniform(5, draw++) * 3); parts > 0; --parts)
      for (char c : tokens.token_bytes(static_cast<token_id>(uniform(5, draw++) * static_cast<double>(tokens.size()))))
        if ((c | 32) >= 'a' && (c | 32) <= 'z') word += c;
  }
  std::string out;
  for (std::uint64_t i = 0; out.size() < bytes; ++i) {
    out += words[static_cast<std::size_t>(std::pow(5000.0, uniform(1, i))) - 1];
    if (i % 12 == 11) out += i % 60 == 59 ? ".\n" : ",";
  }
  out.resize(bytes);
  return out;
}

// Numbers and names that never come again: nothing to cache.
std::string records(std::size_t bytes) {
  std::string out;
  for (std::uint64_t i = 0; out.size() < bytes; ++i) {
    auto n = static_cast<unsigned long long>(uniform(2, i) * 1e15);
    out += "key_" + std::to_string(n) + "x: [" + std::to_string(i) + ", 0." + std::to_string(n % 999983) + "]\n";
  }
  out.resize(bytes);
  return out;
}

std::string ideographs(std::size_t bytes) {
  std::string out;
  for (std::uint64_t i = 0; out.size() + 3 <= bytes; ++i) {
    auto code = 0x4e00 + static_cast<unsigned>(uniform(3, i) * 0x5000);
    out += {static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
            static_cast<char>(0x80 | (code & 63))};
  }
  return out;
}

std::vector<row> run(const options& o) {
  auto tokens = tokenizer::load(o.model);
  std::vector<row> out;
  auto encode = [&](const std::string& what, const std::string& text) {
    auto fresh = tokens;
    out.push_back(measure("encode " + what, text.size(), o.runs, [&] { fresh.encode(text); }));
  };
  auto english = prose(tokens, o.bytes);
  encode("prose", english);
  encode("5 KB of prose", english.substr(0, 5000));
  encode("records", records(o.bytes));
  encode("ideographs", ideographs(o.bytes));
  encode("one word", std::string(o.bytes, 'a'));
  encode("white space", std::string(o.bytes, ' '));
  auto ids = tokens.encode(english);
  out.push_back(measure("decode prose", english.size(), o.runs, [&] { tokens.decode(ids); }));
  out.push_back(measure("stream prose, token by token", english.size(), o.runs, [&] {
    detokenizer text(tokens);
    for (auto id : ids) text.push(id);
    text.finish();
  }));

  std::vector<float> logits(128'256);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(12 * uniform(4, i));
  sampler sample;
  auto draw = [&](const std::string& what, const sampling_params& params) {
    constexpr std::size_t draws = 20;
    out.push_back(measure("sample " + what + ", 128,256 logits", draws, o.runs, [&] {
      for (std::uint64_t at = 0; at < draws; ++at) sample.sample(logits, params, at).value();
    }));
  };
  draw("greedy", {.temperature = 0});
  draw("temperature 0.8", {.temperature = 0.8f});
  draw("top-k 50", {.temperature = 0.8f, .top_k = 50});
  draw("top-p 0.95", {.temperature = 0.8f, .top_p = 0.95f});
  return out;
}

void print(const std::vector<row>& rows, const std::string& json) {
  std::printf("| what | first | median | rate |\n|---|---|---|---|\n");
  std::string out = "[";
  for (auto& r : rows) {
    bool draws = r.what.starts_with("sample");
    auto rate = static_cast<double>(r.amount) / r.median_s;
    std::printf("| %s | %.3f ms | %.3f ms | %.1f %s |\n", r.what.c_str(), r.first_s * 1e3, r.median_s * 1e3,
                draws ? rate : rate / 1e6, draws ? "draws/s" : "MB/s");
    out += (out.size() > 1 ? "," : "") + std::string("\n  {\"what\": \"") + r.what +
           "\", \"amount\": " + std::to_string(r.amount) + ", \"first_s\": " + std::to_string(r.first_s) +
           ", \"median_s\": " + std::to_string(r.median_s) + "}";
  }
  if (!json.empty()) std::ofstream(json) << out << "\n]\n";
}

options parse(int argc, char** argv) {
  options o;
  for (int i = 1; i < argc; ++i) {
    std::string flag = argv[i];
    if (i + 1 == argc) throw config_error(flag + ": a value is missing");
    std::string value = argv[++i];
    if (flag == "--model") {
      o.model = value;
    } else if (flag == "--json") {
      o.json = value;
    } else if (flag == "--bytes" || flag == "--runs") {
      char* end = nullptr;
      auto number = std::strtol(value.c_str(), &end, 10);
      if (*end != 0 || number < 1 || number > 1 << 28) throw config_error(flag + ": " + value + " is not a number");
      if (flag == "--bytes") o.bytes = static_cast<std::size_t>(number);
      if (flag == "--runs") o.runs = static_cast<int>(number);
    } else {
      throw config_error(flag + ": unknown flag");
    }
  }
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    auto o = parse(argc, argv);
    print(run(o), o.json);
  } catch (const config_error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}
