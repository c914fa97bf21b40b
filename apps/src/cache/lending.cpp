#include "cache/lending.hpp"

#include <array>

#include "cache/service.hpp"
#include "cokv/kvstream/block_places.hpp"

namespace cokv::cache {
namespace {

using http::exchange;
using http::status;

http::problem not_in_memory() {
  return {status::conflict, "not all of it lies in memory that is lent; read it without by=reference", "by",
          "not_in_memory"};
}

}  // namespace

std::optional<std::uint64_t> lending::offset_of(const buffer& part) const noexcept {
  const auto begin = reinterpret_cast<std::uintptr_t>(of_.memory.data());
  const auto at = reinterpret_cast<std::uintptr_t>(part.data());
  if (at < begin || part.size() > of_.memory.size() || at - begin > of_.memory.size() - part.size())
    return std::nullopt;
  return at - begin;
}

std::unique_ptr<lending::lease> lending::lend(std::uint64_t bytes, std::uint64_t blocks,
                                              std::unique_ptr<block_reader> reader, std::vector<buffer> views,
                                              std::shared_ptr<const bool> left) {
  if (now_ >= most_ || bytes > room_ || bytes_ > room_ - bytes) return nullptr;
  return std::make_unique<lease>(shared_from_this(), bytes, blocks, std::move(reader), std::move(views),
                                 std::move(left));
}

lending::lease::lease(std::shared_ptr<lending> of, std::uint64_t bytes, std::uint64_t blocks,
                      std::unique_ptr<block_reader> reader, std::vector<buffer> views, std::shared_ptr<const bool> left)
    : of_(std::move(of)), bytes_(bytes), blocks_(blocks), reader_(std::move(reader)), left_(std::move(left)) {
  views_.push_back(std::move(views));
  ++of_->now_;
  of_->bytes_ += bytes_;
  of_->blocks_ += blocks_;
  ++of_->leases_;
}

// A client that was not seen to go may read for as long as it likes: its blocks stay where they are for good.
lending::lease::~lease() {
  --of_->now_;  // its connection has ended either way
  if (promised_ && !*left_) {
    of_->kept_.splice(of_->kept_.end(), views_);
    return;
  }
  of_->bytes_ -= bytes_;
  of_->blocks_ -= blocks_;
}

// ---- the routes

bool service::lends_to(const exchange& x) const {
  return options_.lending && x.who().may(http::right::read) && x.who().namespaces.empty();
}

void service::offer(exchange& x) const {
  if (lends_to(x)) x.set("Cokv-Memory", options_.lending->field());
}

// Whoever maps the memory sees all of it, whatever it asks for later.
std::optional<http::problem> service::refuse_to_lend(const exchange& x) const {
  if (!options_.lending || !x.carries_descriptors()) return not_lent();
  if (!lends_to(x))
    return http::problem{
        status::forbidden, "the memory is lent to who may read every namespace", {}, "permission_denied"};
  return std::nullopt;
}

awaitable<void> service::show_memory(exchange& x) {
  if (auto no = refuse_to_lend(x)) co_return (void) co_await x.refuse(std::move(*no));
  const auto& lent = *options_.lending;
  x.attach(lent.memory().file);
  co_await x.respond(
      status::ok, "application/json",
      "{\"memory\":" + std::to_string(lent.id()) + ",\"bytes\":" + std::to_string(lent.memory().memory.size()) + "}");
}

awaitable<void> service::lend(exchange& x, stream_begin about) {
  if (auto no = refuse_to_lend(x)) co_return (void) co_await x.refuse(std::move(*no));
  if (!x.stay())
    co_return co_await refuse(x, {status::bad_request, "nothing follows a read by reference", {}, "protocol"});
  auto& lent = *options_.lending;
  auto opened = co_await store_.async_open_read(about.ns, about.layout, about.keys, as_result);
  if (!opened) co_return co_await refuse(x, problem_of(opened.error(), transfer::reading));
  auto reader = std::move(*opened);
  const auto found = reader->found();
  if (found != 0 && !reader->views_at_once()) co_return co_await refuse(x, not_in_memory());

  block_places where{
      .memory = lent.id(), .generation = about.generation, .layers = about.layout.layers(), .lives = {}, .places = {}};
  std::vector<buffer> held;  // one of each memory that has some of a block
  held.reserve(found);
  where.places.reserve(found * where.layers);
  for (std::uint32_t layer = 0; layer < where.layers && found != 0; ++layer) {
    auto views = reader->view_now(layer);
    if (!views && views.error() == asio::error::would_block) views = co_await reader->async_view(layer, as_result);
    if (!views || views->size() != found) co_return co_await refuse(x, not_in_memory());
    for (auto& view : *views) {
      const auto offset = lent.offset_of(view.bytes);
      if (!offset || (!view.digest && about.digest != digest_algorithm::none))
        co_return co_await refuse(x, not_in_memory());
      where.places.push_back({*offset, view.digest.value_or(0)});
      if (layer == 0) where.lives.push_back(view.life);
      const auto of_block = static_cast<std::size_t>(&view - views->data());
      if (layer == 0 || !view.bytes.shares_memory_with(held[of_block])) held.push_back(std::move(view.bytes));
    }
  }
  const auto lease = lent.lend(about.layout.bytes() * found, found, std::move(reader), std::move(held), x.left());
  if (!lease)
    co_return co_await refuse(x, {status::service_unavailable,
                                  "as much of the memory is lent as may be; read without by=reference",
                                  {},
                                  "busy"});
  const auto bytes = where.encode();
  x.start(status::ok, "application/vnd.cokv.places", bytes.size());
  const std::array all{asio::const_buffer(bytes.data(), bytes.size())};
  lease->promise();
  if (co_await x.write(all)) co_return lease->withdraw();  // they end with their digest
  if (co_await x.finish() || found == 0) co_return;
  co_await x.until_left();
}

}  // namespace cokv::cache
