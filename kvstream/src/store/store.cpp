#include "cokv/kvstream/store.hpp"

#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/error.hpp"
#include "store/stored_id.hpp"

namespace cokv {

void block_writer::do_placed(std::uint32_t, std::vector<std::uint64_t>, done_handler handler) {
  detail::initiate<void(error_code)>(std::move(handler), executor_,
                                     [](auto& op) { op.complete(make_error_code(errc::invalid_argument)); });
}

void block_reader::do_view(std::uint32_t layer, view_handler handler) {
  auto views = view_now(layer);
  if (!views && views.error() == asio::error::would_block) views = errc::unsupported;
  detail::finish(std::move(handler), executor_, std::move(views));
}

void store::do_layout(namespace_id, block_key, layout_handler handler) {
  detail::initiate<void(error_code, block_layout)>(std::move(handler), executor_,
                                                   [](auto& op) { op.fail(make_error_code(errc::unsupported)); });
}

void store::do_settle(done_handler handler) {
  detail::initiate<void(error_code)>(std::move(handler), executor_, [](auto& op) { op.complete({}); });
}

}  // namespace cokv
