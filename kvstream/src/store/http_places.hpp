// Blocks of a cache server on this machine, read where they lie: the server lends its memory through its Unix socket, to be
// read only, and answers a `:read` by reference with places instead of bytes. What is read is kept where it is for as long
// as a connection lives; that is taken out of the client's hands (byte_stream::detach), so that its end is that of
// the last view.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "cokv/kvstream/frame_stream.hpp"
#include "cokv/kvstream/store.hpp"
#include "store/http_client.hpp"

namespace cokv::detail {

struct http_remote;

// What is known of the server's memory.
class lent_memory : public std::enable_shared_from_this<lent_memory> {
 public:
  using connect = std::function<std::shared_ptr<http_client>(const std::string& path)>;

  explicit lent_memory(connect make) : make_(std::move(make)) {}  // where the socket is, offered() will tell
  explicit lent_memory(std::shared_ptr<http_client> at) : client_(std::move(at)) {}

  // The field of an answer that says which memory is lent, and where.
  void offered(std::string_view field);
  // Whether to ask at all.
  bool usable() const noexcept { return client_ && !refused_; }
  void refuse() noexcept { refused_ = true; }
  // The same of writes from our memory: until another memory is offered, or for a while.
  bool takes() const;
  void refuse_writes(duration how_long = duration::max());
  // The number by which the server told of its memory; 0: it is spoken to there anyway.
  std::uint64_t expected() const noexcept { return expected_; }
  void close();

  const std::shared_ptr<http_client>& client() const noexcept { return client_; }
  const buffer& memory() const noexcept { return memory_; }
  std::uint64_t id() const noexcept { return id_; }
  // errc::stale_reference: it is not the memory that was offered.
  error_code map(std::uint64_t id, std::uint64_t bytes, byte_stream::descriptor file);
  void unmap();
  // It was read from: unmapped when that is some time ago, so that nobody keeps the memory of a server that is gone.
  void used();

  // How many layers of a block, from the first, are known to be right. It is known by where its first segment lies.
  std::uint32_t verified(std::uint64_t offset, std::uint64_t life) const;
  void verify(std::uint64_t offset, std::uint64_t life, std::uint32_t layers);

 private:
  void wait(time_point until);

  connect make_;
  std::shared_ptr<http_client> client_;
  std::vector<std::weak_ptr<http_client>> others_;  // those before it that something is still under way through
  std::string path_;
  std::uint64_t expected_ = 0;  // by what was offered; 0: not known
  bool refused_ = false;
  time_point takes_again_{};
  std::uint64_t id_ = 0;
  buffer memory_;
  time_point used_{};
  bool waiting_ = false;
  asio::cancellation_signal stop_waiting_;
  struct known {
    std::uint64_t life = 0;
    std::uint32_t layers = 0;
  };
  std::unordered_map<std::uint64_t, known> verified_;
};

// Any error but operation_aborted: to be read over the wire instead.
awaitable<result<std::unique_ptr<block_reader>>> open_places_reader(std::shared_ptr<http_remote> remote,
                                                                    stream_begin about);

}  // namespace cokv::detail
