// The writers and readers of a forwarded_store, and how they hold those of the other context.
#pragma once

#include <memory>
#include <utility>

#include "cokv/kvstream/store.hpp"
#include "cokv/runtime/shards.hpp"

namespace cokv::detail {

inline auto total() { return asio::this_coro::reset_cancellation_state(asio::enable_total_cancellation()); }

// An object of another context: used there alone, held from anywhere, destroyed there.
template <class T>
class held_there {
 public:
  held_there() = default;
  held_there(shard_ref home, std::unique_ptr<T> object) : home_(home.state()), object_(std::move(object)) {}
  held_there(held_there&& o) noexcept = default;
  held_there& operator=(held_there&& o) noexcept {
    if (this == &o) return *this;
    drop();
    home_ = std::move(o.home_);
    object_ = std::move(o.object_);
    return *this;
  }
  ~held_there() { drop(); }

  T* get() const noexcept { return object_.get(); }
  T* operator->() const noexcept { return object_.get(); }

 private:
  void drop() {
    if (object_) home_->deliver([object = std::move(object_)] {});
  }

  std::shared_ptr<shard_state> home_;
  std::unique_ptr<T> object_;
};

std::unique_ptr<block_writer> forward_writer(asio::any_io_executor here, shard_ref home,
                                             held_there<block_writer> writer, block_layout layout, std::size_t keys);

using layers_of_views = std::vector<std::vector<segment_view>>;  // of one layer, or several from it on
// There: the layer, and as many behind it as cost nothing to ask for. An error of the first one alone is one.
awaitable<result<layers_of_views>> view_ahead(block_reader& reader, std::uint32_t layer, std::uint32_t layers);

struct opened_reader {
  held_there<block_reader> reader;
  std::size_t found = 0;
  bool at_once = false;
  layers_of_views first;
};
std::unique_ptr<block_reader> forward_reader(asio::any_io_executor here, shard_ref home, opened_reader opened,
                                             block_layout layout, std::size_t keys);

}  // namespace cokv::detail
