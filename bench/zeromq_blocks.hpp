// Blocks behind a ZeroMQ ROUTER in a process of its own, and a DEALER: an extent a frame, a message a layer. Nothing is
// copied that ZeroMQ lets be: what is sent lies where it is, and the server keeps the frames that it received.
#pragma once

#include <zmq.hpp>

#include "raw_blocks.hpp"

namespace cokv::bench {

class zeromq_blocks {
 public:
  explicit zeromq_blocks(const model_shape& model)
      : model_(model), there_([&](auto tell) { serve(model, tell); }), to_(context_, zmq::socket_type::dealer) {
    count_process(there_.id());
    to_.connect("tcp://127.0.0.1:" + std::to_string(there_.port()));
  }

  void put(const block_pool& from, std::size_t first, std::size_t count) {
    for (std::uint32_t layer = 0; layer < model_.layers; ++layer) {
      say({1, static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(count), layer}, true);
      for (std::size_t i = 0; i < count; ++i)
        to_.send(zmq::message_t(from.at(layer, first + i), model_.extent(), stays), more(i + 1 < count));
    }
    zmq::message_t done;
    must_be(to_.recv(done).has_value(), "ZeroMQ answers");
  }
  void get(const block_pool& into, std::size_t first, std::size_t count) {
    say({0, static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(count), 0}, false);
    for (std::size_t layer = 0; layer < model_.layers; ++layer)
      for (std::size_t i = 0; i < count; ++i) {
        zmq::message_t part;
        must_be(to_.recv(part).has_value() && part.size() == model_.extent(), "ZeroMQ answers");
        std::memcpy(into.at(layer, first + i), part.data(), part.size());
      }
  }

 private:
  static void stays(void*, void*) {}
  static zmq::send_flags more(bool yes) { return yes ? zmq::send_flags::sndmore : zmq::send_flags::none; }

  static void serve(const model_shape& model, const std::function<void(std::uint16_t)>& tell) {
    std::vector<zmq::message_t> kept(model.layers * all_blocks);
    zmq::context_t context;
    zmq::socket_t door(context, zmq::socket_type::router);
    door.bind("tcp://127.0.0.1:*");
    const auto at = door.get(zmq::sockopt::last_endpoint);
    tell(static_cast<std::uint16_t>(std::stoul(at.substr(at.rfind(':') + 1))));
    for (;;) {
      zmq::message_t who, what;
      if (!door.recv(who) || !door.recv(what)) return;
      const auto c = *what.data<raw_command>();
      const auto block = [&](std::size_t layer, std::size_t i) -> zmq::message_t& {
        return kept[layer * all_blocks + c.first + i];
      };
      if (c.put) {
        const std::uint32_t layer = c.unused;
        for (std::size_t i = 0; i < c.count; ++i) {
          auto& to = block(layer, i);
          must_be(door.recv(to).has_value() && to.size() == model.extent(), "a block");
        }
        if (layer + 1 < model.layers) continue;
        door.send(who, zmq::send_flags::sndmore);
        door.send(zmq::message_t("k", 1), zmq::send_flags::none);
        continue;
      }
      for (std::size_t layer = 0; layer < model.layers; ++layer) {
        zmq::message_t to;
        to.copy(who);
        door.send(to, zmq::send_flags::sndmore);
        for (std::size_t i = 0; i < c.count; ++i) {
          zmq::message_t part;
          part.copy(block(layer, i));  // of its handle
          door.send(part, more(i + 1 < c.count));
        }
      }
    }
  }
  void say(raw_command c, bool and_more) { to_.send(zmq::message_t(&c, sizeof c), more(and_more)); }

  model_shape model_;
  other_process there_;
  zmq::context_t context_;
  zmq::socket_t to_;
};

}  // namespace cokv::bench
