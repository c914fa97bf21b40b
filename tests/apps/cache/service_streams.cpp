// How uploads reach the store, and requests that come before the answers.
#include "raw_requests.hpp"

using namespace cokv;
using namespace cokv::test;
using namespace cokv::test::raw_requests;

namespace {

// A store of another's blocks that counts how they are written.
class counting_store final : public store {
 public:
  counting_store(std::unique_ptr<store> of, bool places)
      : store(of->get_executor()), of_(std::move(of)), places_(places) {}

  store_info info() const override { return of_->info(); }
  std::size_t written = 0, placed = 0;  // layers

 private:
  class writer final : public block_writer {
   public:
    writer(counting_store& to, std::unique_ptr<block_writer> of)
        : block_writer(to.get_executor()), to_(to), of_(std::move(of)) {}
    std::vector<buffer> place(std::uint32_t layer) override {
      return to_.places_ ? of_->place(layer) : std::vector<buffer>();
    }

   private:
    void do_write(std::uint32_t layer, std::vector<buffer> segments, done_handler handler) override {
      ++to_.written;
      of_->async_write(layer, std::move(segments), std::move(handler));
    }
    void do_placed(std::uint32_t layer, std::vector<std::uint64_t> digests, done_handler handler) override {
      ++to_.placed;
      of_->async_placed(layer, std::move(digests), std::move(handler));
    }
    void do_commit(done_handler handler) override { of_->async_commit(std::move(handler)); }

    counting_store& to_;
    std::unique_ptr<block_writer> of_;
  };

  void do_match(namespace_id ns, std::vector<block_key> keys, match_options o, count_handler h) override {
    of_->async_match(ns, std::move(keys), o, std::move(h));
  }
  void do_open_write(namespace_id ns, block_layout layout, std::vector<block_key> keys, write_options o,
                     writer_handler h) override {
    of_->async_open_write(ns, std::move(layout), std::move(keys), std::move(o),
                          [this, h = std::move(h)](error_code ec, std::unique_ptr<block_writer> w) mutable {
                            if (w) w = std::make_unique<writer>(*this, std::move(w));
                            std::move(h)(ec, std::move(w));
                          });
  }
  void do_open_read(namespace_id ns, block_layout layout, std::vector<block_key> keys, reader_handler h) override {
    of_->async_open_read(ns, std::move(layout), std::move(keys), std::move(h));
  }
  void do_remove(namespace_id ns, block_key k, done_handler h) override { of_->async_remove(ns, k, std::move(h)); }

  std::unique_ptr<store> of_;
  bool places_;
};

}  // namespace

TEST_CASE("cache server: an upload is received into the store's own memory, or into a layer's where it has none") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        for (const bool places : {true, false}) {
          auto memory = std::make_unique<memory_store>(ex, memory_store_options{});
          CHECK(!co_await write_blocks(*memory, cache_ns, 2, 1));
          counting_store counted(std::move(memory), places);
          cache::service service(counted, {{"memory", &counted}});
          http::server server(ex, {.observe = service.observer()});
          service.add_routes(server);
          server.listen({"127.0.0.1", 0});
          auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
            group.spawn([&] { return server.run(); });
            http_store s(ex, "http://" + server.local_endpoint().to_string());
            // Layers of all sizes, blocks that are there already among those that are not.
            CHECK(!co_await write_blocks(s, cache_ns, 0, 5));
            CHECK(!co_await write_blocks(s, cache_ns, 10, 1));
            CHECK(co_await read_blocks(s, cache_ns, 0, 5) == 5);
            CHECK(co_await read_blocks(s, cache_ns, 10, 1) == 1);
            server.drain(0s);
          });
          CHECK(bool(v));
          const auto layers = 2 * contract_layout().layers();
          CHECK(counted.placed == (places ? layers : 0));
          CHECK(counted.written == (places ? 0 : layers));
        }
      },
      {.seeds = 5});
}

TEST_CASE("cache server: a client may send its next requests before the answers, errors between them or not") {
  co_test(
      [](asio::any_io_executor ex) -> awaitable<void> {
        cache_server server(ex);
        const auto block = [](std::uint32_t n, std::uint64_t bytes) {
          return stream_begin{.ns = cache_ns, .generation = n, .layout = {{bytes, 40}}, .keys = contract_keys(n, 1)};
        };
        const auto asks_for = [](const stream_begin& about) { return text_of(stream_writer(about).begin()); };
        const auto small = block(0, 100), large = block(1, 100'000), spoilt = block(2, 3000), absent = block(3, 10);
        const auto damaged = stream_of(spoilt, [](std::string& text) { text[text.size() - 1000] ^= 1; });
        const std::vector<std::pair<std::string, int>> exchanges{
            {post(base + ":write", stream_of(small)), 200}, {post(base + ":read", asks_for(small)), 200},
            {post(base + ":write", stream_of(large)), 200}, {post(base + ":write", damaged), 422},
            {post(base + ":read", asks_for(large)), 200},   {post(base + ":read", asks_for(absent)), 200},
            {post(base + ":match", "[\"zz\"]"), 400},       {post(base + ":write?defer=1", stream_of(small)), 400},
            {post(base + ":write", stream_of(large)), 200}, {post(base + ":read", asks_for(small)), 200}};
        std::string all;
        for (const auto& [request, status] : exchanges) all += request;
        auto c = co_await raw_client::connect(server.at());
        auto v = co_await with(task_group{}, [&](task_group& group) -> awaitable<void> {
          group.spawn([&]() -> awaitable<void> { CHECK(!co_await c.send(all)); });
          for (const auto& [request, status] : exchanges) {
            CAPTURE(request.substr(0, 200));
            const auto r = co_await c.read();
            CHECK(r.result_int() == status);
            if (r.result_int() != 200) continue;
            if (request.ends_with(asks_for(small))) CHECK(r.body() == stream_of(small));
            if (request.ends_with(asks_for(large))) CHECK(r.body() == stream_of(large));
          }
        });
        CHECK(bool(v));
        CHECK(server.memory().info().blocks == 2);
      },
      {.seeds = 10});
}
