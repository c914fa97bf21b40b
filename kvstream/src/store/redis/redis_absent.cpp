// redis_store where hiredis was not there when this was built.
#include "cokv/kvstream/redis_store.hpp"
#include "cokv/runtime/error.hpp"
#include "store/stored_id.hpp"

namespace cokv {

redis_store::redis_store(asio::any_io_executor ex, std::string_view, redis_store_options) : store(ex) {
  throw config_error("redis store: this cokv was built without hiredis");
}
redis_store::~redis_store() = default;

store_info redis_store::info() const { return {}; }

void redis_store::do_match(namespace_id, std::vector<block_key>, match_options, count_handler handler) {
  detail::finish<std::size_t>(std::move(handler), get_executor(), errc::unsupported, 0);
}
void redis_store::do_open_write(namespace_id, block_layout, std::vector<block_key>, write_options,
                                writer_handler handler) {
  detail::finish<std::unique_ptr<block_writer>>(std::move(handler), get_executor(), errc::unsupported, nullptr);
}
void redis_store::do_open_read(namespace_id, block_layout, std::vector<block_key>, reader_handler handler) {
  detail::finish<std::unique_ptr<block_reader>>(std::move(handler), get_executor(), errc::unsupported, nullptr);
}
void redis_store::do_remove(namespace_id, block_key, done_handler handler) {
  detail::finish<>(std::move(handler), get_executor(), errc::unsupported);
}
void redis_store::do_layout(namespace_id, block_key, layout_handler handler) {
  detail::finish<block_layout>(std::move(handler), get_executor(), errc::unsupported, {});
}

}  // namespace cokv
