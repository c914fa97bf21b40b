#include "fit/reader.hpp"

#include <unistd.h>

#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <string>
#include <vector>

#include "cokv/runtime/error.hpp"
#include "load/runner.hpp"

namespace cokv::fit {
namespace {

// What is no answer is told in words, as many bytes as it says.
struct told {
  reading got;
  std::uint32_t words = 0;
};

[[noreturn]] void has_ended() { throw config_error("--workers: who reads their answers has ended"); }

void follow(int link) {
  for (question q; receive_all(link, &q, sizeof q);) {
    told reply;
    std::string why;
    asio::io_context context(1);
    asio::co_spawn(context, read_answers(q), [&](std::exception_ptr e, reading r) {
      reply.got = r;
      try {
        if (e) std::rethrow_exception(e);
      } catch (const std::exception& x) {
        why = x.what();
      }
    });
    context.run();
    reply.words = static_cast<std::uint32_t>(why.size());
    if (!send_all(link, &reply, sizeof reply) || !send_all(link, why.data(), why.size())) break;
  }
}

}  // namespace

awaitable<reading> read_answers(question q) {
  http::client server(co_await asio::this_coro::executor, {.at = {.host = "127.0.0.1", .port = q.port}});
  const workload::prompt_maker make(
      {.model = std::string(served_name), .vocabulary = q.vocabulary, .ignore_eos = true});
  std::vector<workload::request_record> all;
  const std::vector<workload::load_item> items(q.sequences, {.prompt_tokens = q.prompt, .output_tokens = q.answer});
  co_await workload::run_load(server, items, make, {}, all);
  reading mean;
  for (const auto& r : all) {
    if (!r.answered()) throw config_error("--workers: an answer of a pipeline: " + r.error);
    mean.first += r.ttft_ms / 1e3 / q.sequences;
    mean.token += r.tpot_ms().value_or(0) / 1e3 / q.sequences;
  }
  co_return mean;
}

reader::reader() : other_(follow) {}

awaitable<reading> reader::ask(question q) {
  if (!send_all(other_.link(), &q, sizeof q)) has_ended();
  asio::local::stream_protocol::socket from(co_await asio::this_coro::executor, asio::local::stream_protocol(),
                                            ::dup(other_.link()));
  told reply;
  std::string why;
  try {
    co_await asio::async_read(from, asio::buffer(&reply, sizeof reply), asio::deferred);
    why.resize(reply.words);
    co_await asio::async_read(from, asio::buffer(why), asio::deferred);
  } catch (const boost::system::system_error& e) {
    if (e.code() == asio::error::operation_aborted) throw;
    has_ended();
  }
  if (!why.empty()) throw config_error(why);
  co_return reply.got;
}

}  // namespace cokv::fit
