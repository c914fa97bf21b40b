// Blocks in redis-server, in a process of its own, through hiredis: an extent a key, commands in pipelines. A reply's
// bytes go from hiredis' buffer straight to where they belong, by reply functions of our own, which is its way to do
// without a reply object and a second copy.
#pragma once

#include <hiredis/hiredis.h>

#include <cstring>
#include <thread>

#include "raw_blocks.hpp"

namespace cokv::bench {

class redis_blocks {
 public:
  explicit redis_blocks(const model_shape& model) : model_(model), there_(serve) {
    count_process(there_.id());
    for (int tries = 0; tries < 200 && (!to_ || to_->err); ++tries) {
      if (to_) redisFree(to_);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      to_ = redisConnect("127.0.0.1", there_.port());
    }
    must_be(to_ && !to_->err, "redis-server can't be reached");
    without_delay(to_->fd);
    to_->reader->fn = &in_place_;
    to_->reader->maxbuf = 0;  // its buffer stays
  }
  ~redis_blocks() { redisFree(to_); }
  redis_blocks(const redis_blocks&) = delete;
  redis_blocks& operator=(const redis_blocks&) = delete;

  // All commands are on their way before the first answer, of a few bytes each, is looked at.
  void put(const block_pool& from, std::size_t first, std::size_t count) {
    constexpr std::size_t at_once =
        256 << 10;  // hiredis copies what it sends: a part that stays in the processor's cache
    std::size_t pending = 0;
    for (std::size_t layer = 0; layer < model_.layers; ++layer)
      for (std::size_t i = first; i < first + count; ++i) {
        const auto key = name(layer, i);
        const char* words[] = {"SET", key.c_str(), reinterpret_cast<const char*>(from.at(layer, i))};
        const std::size_t sizes[] = {3, key.size(), model_.extent()};
        must_be(redisAppendCommandArgv(to_, 3, words, sizes) == REDIS_OK, "SET");
        if ((pending += model_.extent()) >= at_once) pending = 0, flush();
      }
    flush();
    for (std::size_t n = model_.layers * count; n > 0; --n) answer(nullptr);
  }

  // As many layers at once as make 64 extents, and the next ones are on their way meanwhile.
  void get(const block_pool& into, std::size_t first, std::size_t count) {
    const auto at_once = std::max<std::size_t>(1, 64 / count);
    const auto ask = [&](std::size_t layer) {
      for (auto l = layer; l < std::min(layer + at_once, model_.layers); ++l)
        for (std::size_t i = first; i < first + count; ++i) {
          const auto key = name(l, i);
          const char* words[] = {"GET", key.c_str()};
          const std::size_t sizes[] = {3, key.size()};
          must_be(redisAppendCommandArgv(to_, 2, words, sizes) == REDIS_OK, "GET");
        }
      flush();
    };
    ask(0);
    for (std::size_t layer = 0; layer < model_.layers; layer += at_once) {
      if (layer + at_once < model_.layers) ask(layer + at_once);
      for (auto l = layer; l < std::min(layer + at_once, model_.layers); ++l)
        for (std::size_t i = first; i < first + count; ++i) answer(into.at(l, i));
    }
  }

 private:
  struct place {
    std::byte* at;  // none: a status is awaited
    std::size_t bytes;
    bool good = false;
  };

  static void serve(const std::function<void(std::uint16_t)>& tell) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    auto at = loopback(0);
    socklen_t size = sizeof at;
    must_be(::bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0, "a free port");
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size);
    ::close(fd);
    const auto port = ntohs(at.sin_port);
    tell(port);
    ::execlp("redis-server", "redis-server", "--port", std::to_string(port).c_str(), "--bind", "127.0.0.1", "--save",
             "", "--appendonly", "no", "--logfile", "/dev/null", static_cast<char*>(nullptr));
  }

  static std::string name(std::size_t layer, std::size_t i) { return std::to_string(i) + ":" + std::to_string(layer); }

  void flush() {
    for (int done = 0; !done;) must_be(redisBufferWrite(to_, &done) == REDIS_OK, "redis listens");
  }
  void answer(std::byte* at) {
    place p{at, model_.extent()};
    to_->reader->privdata = &p;
    void* reply = nullptr;
    must_be(redisReaderGetReply(to_->reader, &reply) == REDIS_OK, "redis answers");
    while (!reply) {
      must_be(redisBufferRead(to_) == REDIS_OK, "redis answers");
      must_be(redisReaderGetReply(to_->reader, &reply) == REDIS_OK, "redis answers");
    }
    must_be(p.good, "redis has it");
  }

  static void* take(const redisReadTask* task, char* from, std::size_t n) {
    auto* p = static_cast<place*>(task->privdata);
    if (p->at && task->type == REDIS_REPLY_STRING && n == p->bytes) {
      std::memcpy(p->at, from, n);
      p->good = true;
    }
    if (!p->at) p->good = task->type == REDIS_REPLY_STATUS;
    return p;
  }
  static inline redisReplyObjectFunctions in_place_{take, [](const redisReadTask* t, int) { return t->privdata; },
                                                    [](const redisReadTask* t, long long) { return t->privdata; },
                                                    [](const redisReadTask* t) { return t->privdata; }, [](void*) {}};

  model_shape model_;
  other_process there_;
  redisContext* to_ = nullptr;
};

}  // namespace cokv::bench
