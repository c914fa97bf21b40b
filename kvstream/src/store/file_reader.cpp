#include <algorithm>

#include "cokv/kvstream/digest.hpp"
#include "cokv/runtime/detail/run_as_operation.hpp"
#include "cokv/runtime/error.hpp"
#include "store/file_store_state.hpp"

namespace cokv::detail {
namespace {

// The read of some blocks; operations in flight share it, so it may outlive its block_reader.
struct read_job {
  struct slot {
    std::shared_ptr<file_entry> entry;
    block_file about;
    file open;
    permit stays_open;
  };

  read_job(std::shared_ptr<file_store::state> s, block_layout l, std::size_t n)
      : store(std::move(s)), layout(std::move(l)), keys(n), pins(store) {}

  std::shared_ptr<file_store::state> store;
  block_layout layout;
  std::size_t keys;
  std::size_t found = 0;
  std::vector<slot> slots;
  file_pins pins;
  std::size_t good = 0;
  std::uint32_t next = 0;
  error_code failed;

  awaitable<error_code> open_slot(slot& s) {
    auto [ec, f] = co_await store->open_block(s.entry->path, open_mode::read);
    s.open = std::move(f);
    if (!ec && s.stays_open.count() == 0)
      if (auto p = store->open_files.try_acquire()) s.stays_open = std::move(*p);
    co_return ec;
  }

  void rest(slot& s) {
    if (s.stays_open.count() == 0) s.open.close();
  }

  // The prefix ends before this block: it is damaged, or somebody removed its file, and goes. What merely can't be read
  // just now stays, and is an error of the read.
  void end_before(std::size_t index, bool damaged) {
    good = std::min(good, index);
    auto& e = slots[index].entry;
    if (damaged) ++store->counters.digest_failures;
    if (store->find(e->id) == e) store->drop(e);
  }

  error_code not_opened(std::size_t index, error_code ec) {
    if (ec != boost::system::errc::no_such_file_or_directory) return ec;
    end_before(index, false);
    return {};
  }

  awaitable<error_code> read_head(std::size_t index) {
    auto [wait_ec, admitted] = co_await store->admit();
    if (wait_ec) co_return wait_ec;
    auto& s = slots[index];
    if (!s.open.is_open())
      if (auto ec = co_await open_slot(s)) co_return not_opened(index, ec);
    auto head = co_await store->read_head(s.open);
    rest(s);
    if (!head && head.error().category() != cokv_category()) co_return head.error();
    if (!head || head->id != s.entry->id || head->layout != layout)
      end_before(index, true);  // no block, or another one in this one's place
    else
      s.about = std::move(*head);
    co_return error_code();
  }

  awaitable<error_code> read_segment(std::uint32_t layer, std::size_t index, buffer into) {
    if (index >= good) co_return error_code();
    auto [wait_ec, admitted] = co_await store->admit();
    if (wait_ec) co_return wait_ec;
    auto& s = slots[index];
    if (!s.open.is_open())
      if (auto ec = co_await open_slot(s)) co_return not_opened(index, ec);
    auto [ec, n] = co_await read_whole(s.open, store->staging, s.about.segment_offset(layer), into.bytes());
    rest(s);
    if (ec) co_return ec;
    const bool sealed = s.about.digest != digest_algorithm::none;
    if (n < into.size() || (sealed && digest_of(into.bytes()) != s.about.digests[layer])) {
      end_before(index, true);
    } else {
      store->counters.read_segments += 1;
      store->counters.read_bytes += n;
    }
    co_return error_code();
  }

  awaitable<std::tuple<error_code, std::size_t>> read(std::uint32_t layer, std::vector<buffer> into) {
    auto result = [](error_code ec, std::size_t n) { return std::tuple(ec, n); };
    if (failed) co_return result(failed, 0);
    if (auto ec = check_buffers(layout, keys, found, layer, into)) co_return result(ec, 0);
    if (layer < next) co_return result(errc::invalid_argument, 0);
    next = layer + 1;
    failed = asio::error::operation_aborted;  // unless this comes to its end
    failed = co_await for_each_index(good, store->options.max_operations,
                                     [&](std::size_t i) { return read_segment(layer, i, into[i]); });
    co_return result(failed, failed ? 0 : good);
  }
};

awaitable<std::tuple<error_code, std::size_t>> run_read(std::shared_ptr<read_job> job, std::uint32_t layer,
                                                        std::vector<buffer> into) {
  co_return co_await job->read(layer, std::move(into));
}

class file_reader final : public block_reader {
 public:
  explicit file_reader(std::shared_ptr<read_job> job) : block_reader(job->store->ex), job_(std::move(job)) {}
  std::size_t found() const noexcept override { return job_->found; }

 private:
  void do_read(std::uint32_t layer, std::vector<buffer> into, count_handler handler) override {
    run_as_operation(get_executor(), run_read(job_, layer, std::move(into)), std::move(handler));
  }

  std::shared_ptr<read_job> job_;
};

}  // namespace

awaitable<std::tuple<error_code, std::unique_ptr<block_reader>>> open_file_reader(std::shared_ptr<file_store::state> s,
                                                                                  namespace_id ns, block_layout layout,
                                                                                  std::vector<block_key> keys) {
  auto fail = [](error_code ec) { return std::tuple(ec, std::unique_ptr<block_reader>()); };
  if (auto ec = check_request(layout, keys)) co_return fail(ec);
  auto job = std::make_shared<read_job>(s, std::move(layout), keys.size());
  for (auto& k : keys) {
    auto e = s->find({ns, k});
    if (!e || *e->layout != job->layout) break;
    job->pins.add(e->id);
    s->order.touch(e->id);
    job->slots.emplace_back().entry = std::move(e);
  }
  job->good = job->slots.size();
  auto ec = co_await for_each_index(job->slots.size(), s->options.max_operations,
                                    [&](std::size_t i) { return job->read_head(i); });
  if (ec) co_return fail(ec);
  job->found = job->good;
  s->counters.hits += job->good;
  s->counters.misses += keys.size() - job->good;
  std::unique_ptr<block_reader> reader = std::make_unique<file_reader>(std::move(job));
  co_return std::tuple(error_code(), std::move(reader));
}

}  // namespace cokv::detail
