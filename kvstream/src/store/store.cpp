#include "cokv/kvstream/store.hpp"

#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/error.hpp"

namespace cokv {

void block_writer::do_placed(std::uint32_t, std::vector<std::uint64_t>, done_handler handler) {
  detail::initiate<void(error_code)>(std::move(handler), executor_,
                                     [](auto& op) { op.complete(make_error_code(errc::invalid_argument)); });
}

void block_reader::do_view(std::uint32_t, view_handler handler) {
  detail::initiate<void(error_code, std::vector<segment_view>)>(
      std::move(handler), executor_, [](auto& op) { op.fail(make_error_code(errc::unsupported)); });
}

void store::do_layout(namespace_id, block_key, layout_handler handler) {
  detail::initiate<void(error_code, block_layout)>(std::move(handler), executor_,
                                                   [](auto& op) { op.fail(make_error_code(errc::unsupported)); });
}

void store::do_settle(done_handler handler) {
  detail::initiate<void(error_code)>(std::move(handler), executor_, [](auto& op) { op.complete({}); });
}

}  // namespace cokv
