// How often is a block still there when it is asked for? The order in which the stores give blocks up (S3-FIFO), the one
// of the disk tier's log, which goes file by file, and least recently used, on the same traces: names by Zipf's law, a
// loop that is a little too long, a scan through a hot set, and something like chats. The last column is what the log
// pays: blocks copied for each block written.
//
//     bench_eviction [--blocks 200000] [--requests 2000000] [--json FILE]
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <list>
#include <random>
#include <unordered_map>

#include "store/log_book.hpp"
#include "store/s3_fifo.hpp"

namespace {

using namespace cokv;
using namespace cokv::detail;

constexpr std::uint64_t block_bytes = 1 << 20;
constexpr std::size_t blocks_a_file = 64;

stored_id id_of(std::uint64_t n) {
  stored_id id;
  for (std::size_t i = 0; i < 8; ++i) id.key.bytes[i] = static_cast<std::byte>(n >> (8 * i));
  return id;
}

// A cache of so many blocks: use() says whether the block was there, and it is afterwards.
class lru {
 public:
  explicit lru(std::size_t blocks) : most_(blocks) {}
  bool use(std::uint64_t n) {
    const auto at = where_.find(n);
    const bool there = at != where_.end();
    if (there) order_.erase(at->second);
    if (!there && order_.size() == most_) {
      where_.erase(order_.front());
      order_.pop_front();
    }
    where_[n] = order_.insert(order_.end(), n);
    return there;
  }

 private:
  std::size_t most_;
  std::list<std::uint64_t> order_;
  std::unordered_map<std::uint64_t, std::list<std::uint64_t>::iterator> where_;
};

class fifo {
 public:
  explicit fifo(std::size_t blocks) : most_(blocks) {}
  bool use(std::uint64_t n) {
    const auto id = id_of(n);
    if (order_.contains(id)) return order_.touch(id), true;
    while (order_.size() >= most_) order_.evict();
    order_.insert(id, block_bytes);
    return false;
  }

 private:
  std::size_t most_;
  s3_fifo order_;
};

// What file_store does, without the files: a sixteenth is the cleaner's, a tenth is for new blocks.
class file_log {
 public:
  explicit file_log(std::size_t blocks) : limit_(blocks * block_bytes), book_(limit_ / 8) {}

  bool use(std::uint64_t n) {
    const auto id = id_of(n);
    if (book_.find(id)) return book_.touch(id), true;
    while (book_.used() + block_bytes > limit_ - limit_ / 16) clean();
    put(id, book_.returns(id), 0);
    ++written_;
    return false;
  }
  double copies() const {
    return static_cast<double>(copied_) / static_cast<double>(std::max<std::uint64_t>(written_, 1));
  }

 private:
  struct head {
    std::uint64_t serial = 0;
    std::size_t blocks = 0;
  };

  void put(const stored_id& id, bool carried, std::uint8_t uses) {
    auto& h = heads_[carried];
    if (h.serial == 0 || h.blocks == blocks_a_file) {
      if (h.serial != 0) book_.seal(h.serial);
      h = {++serial_, 0};
      book_.add_file(h.serial, carried, 0);
    }
    book_.resize(h.serial, ++h.blocks * block_bytes);
    auto g = std::make_shared<log_group>();
    g->serial = h.serial;
    g->extent.layout = layout_;
    g->extent.places = 1;
    g->blocks.push_back({id.key, 0});
    book_.insert(g, {&uses, 1});
  }

  void clean() {
    const auto victim = book_.victim(limit_ / 10).value();
    for (auto& h : heads_)
      if (h.serial == victim) h = {};
    const auto pass = book_.plan(victim, limit_ - book_.used());
    for (const auto& c : pass.carry) {
      put(c.id, pass.carried, book_.uses_after(c));
      ++copied_;
    }
    book_.drop_file(victim, true);
    book_.unlinked(victim);
    book_.forget_unlinked({&victim, 1});
  }

  std::uint64_t limit_;
  log_book book_;
  std::shared_ptr<const block_layout> layout_ = std::make_shared<const block_layout>(block_layout{{block_bytes}});
  head heads_[2];
  std::uint64_t serial_ = 0, written_ = 0, copied_ = 0;
};

// Prompts, each a list of blocks: what follows a block that is not there can't be used.
using prompt = std::vector<std::uint64_t>;
using trace = std::function<void(std::function<void(const prompt&)>)>;

trace zipf(std::size_t blocks, std::size_t requests, double skew) {
  return [=](auto ask) {
    std::vector<double> sums(blocks);
    double all = 0;
    for (std::size_t i = 0; i < blocks; ++i) sums[i] = all += 1 / std::pow(static_cast<double>(i + 1), skew);
    std::mt19937_64 random(1);
    std::uniform_real_distribution<double> at(0, all);
    for (std::size_t i = 0; i < requests; ++i) {
      const auto n = std::lower_bound(sums.begin(), sums.end(), at(random)) - sums.begin();
      ask({static_cast<std::uint64_t>(n)});
    }
  };
}

trace loop(std::size_t length, std::size_t requests) {
  return [=](auto ask) {
    for (std::size_t i = 0; i < requests; ++i) ask({i % length});
  };
}

// Half of the requests are for few blocks, the other half each for one that nobody asks for again.
trace scan(std::size_t hot, std::size_t requests) {
  return [=](auto ask) {
    std::mt19937_64 random(2);
    for (std::size_t i = 0; i < requests; ++i) ask({i % 2 == 0 ? random() % hot : (std::uint64_t{1} << 40) + i});
  };
}

// Conversations that go on turn by turn behind one of a few system prompts, some for long, and now and then a long
// document that is read once.
trace chats(std::size_t at_once, std::size_t requests) {
  return [=](auto ask) {
    std::mt19937_64 random(3);
    std::uint64_t next = std::uint64_t{1} << 32;
    const auto grow = [&](prompt& p, std::size_t n) {
      while (n-- > 0) p.push_back(next++);
    };
    std::vector<prompt> systems(8), talks(at_once);
    for (auto& s : systems) grow(s, 16);
    for (std::size_t asked = 0; asked < requests;) {
      auto& t = talks[random() % 4 != 0 ? random() % (at_once / 8) : random() % at_once];  // some are livelier
      if (t.empty() || random() % 12 == 0) t = systems[std::min(random() % 8, random() % 8)];
      grow(t, 1 + random() % 6);
      ask(t);
      asked += t.size();
      if (random() % 40 != 0) continue;
      prompt document = systems[0];
      grow(document, 100 + random() % 200);
      ask(document);
      asked += document.size();
    }
  };
}

template <class Cache>
double hits(Cache& cache, const trace& t) {
  std::uint64_t all = 0, good = 0;
  t([&](const prompt& p) {
    bool leading = true;
    for (auto n : p) {
      const bool there = cache.use(n);
      leading = leading && there;
      good += leading;
      ++all;
    }
  });
  return static_cast<double>(good) / static_cast<double>(all);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"How often is a block still there when it is asked for?"};
  std::size_t blocks = 200'000, requests = 2'000'000;
  std::string json;
  app.add_option("--blocks", blocks, "names in a trace")->check(CLI::Range(1000, 10'000'000));
  app.add_option("--requests", requests, "blocks asked for");
  app.add_option("--json", json, "also write the figures there");
  CLI11_PARSE(app, argc, argv);

  const std::size_t cache = blocks / 10;
  const std::pair<const char*, trace> all[] = {
      {"Zipf 0.8", zipf(blocks, requests, 0.8)},
      {"Zipf 1.0", zipf(blocks, requests, 1.0)},
      {"loop of 0.8", loop(cache * 8 / 10, requests)},
      {"loop of 1.2", loop(cache * 12 / 10, requests)},
      {"scan", scan(cache / 2, requests)},
      {"chats", chats(cache / 16, requests)},
  };
  std::printf(
      "%zu requests, room for %zu blocks, or for half and twice as many; shares of requests that were served\n\n"
      "| trace | blocks | LRU | S3-FIFO | log | copies a block written |\n|---|---|---|---|---|---|\n",
      requests, cache);
  std::string rows;
  for (const auto& [name, t] : all)
    for (auto size : {cache / 2, cache, cache * 2}) {
      lru a(size);
      fifo b(size);
      file_log c(size);
      const auto of_lru = hits(a, t), of_fifo = hits(b, t), of_log = hits(c, t);
      std::printf("| %s | %zu | %.3f | %.3f | %.3f | %.2f |\n", name, size, of_lru, of_fifo, of_log, c.copies());
      std::fflush(stdout);
      char row[300];
      std::snprintf(
          row, sizeof row,
          "{\"trace\": \"%s\", \"blocks\": %zu, \"lru\": %.4f, \"s3_fifo\": %.4f, \"log\": %.4f, \"copies\": %.3f}",
          name, size, of_lru, of_fifo, of_log, c.copies());
      rows += (rows.empty() ? "[\n  " : ",\n  ") + std::string(row);
    }
  if (!json.empty()) std::ofstream(json) << rows << "\n]\n";
}
