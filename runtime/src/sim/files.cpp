#include <cstring>
#include <filesystem>
#include <set>

#include "cokv/runtime/detail/initiate.hpp"
#include "cokv/runtime/detail/operation.hpp"
#include "cokv/runtime/error.hpp"
#include "cokv/runtime/file.hpp"
#include "cokv/runtime/trace.hpp"
#include "disk.hpp"
#include "services.hpp"

namespace cokv::sim {
namespace {

namespace sys = boost::system::errc;

error_code system_error(sys::errc_t e) { return {static_cast<int>(e), boost::system::system_category()}; }

// "a//b/./c/" is "a/b/c"; the root and the working directory are "".
std::string normal(const std::string& path) {
  std::string p = std::filesystem::path(path).lexically_normal().string();
  while (!p.empty() && p.back() == '/') p.pop_back();
  return p == "." ? std::string() : p;
}

std::string parent(const std::string& path) {
  std::size_t slash = path.rfind('/');
  return slash == path.npos ? std::string() : path.substr(0, slash);
}

}  // namespace

// A host's view of its disk.
class disk::files_of final : public file_system::impl {
 public:
  explicit files_of(detail::sim_domain& domain)
      : domain_(domain), disk_(*domain.disk), recorder_(trace::of(domain.core.get_executor())) {}

  void open(std::string path, open_mode mode, bool direct, file_system::open_handler done) override;
  void remove(std::string path, file_system::handler done) override;
  void rename(std::string from, std::string to, file_system::handler done) override;
  void list(std::string directory, file_system::list_handler done) override;
  void make_directories(std::string path, file_system::handler done) override;
  void sync_directory(std::string path, file_system::handler done) override;
  result<std::uint64_t> free_space(const std::string&) const override {
    return disk_.faults.capacity - std::min(disk_.faults.capacity, disk_.used());
  }
  void shutdown() override {}

 private:
  class handle;

  bool is_directory(const std::string& path) const {
    if (path.empty()) return true;
    auto found = disk_.live_.find(path);
    return found != disk_.live_.end() && !found->second.file;
  }

  // After its time, `work()` says what came of it. A cancellation finds the operation begun or not, as the seed has it.
  template <class... T, class F>
  void run(asio::any_completion_handler<void(error_code, T...)> done, const char* what, std::size_t bytes, F work) {
    using operation = detail::operation<void(error_code, T...), disk_wait>;
    asio::any_io_executor ex = sim_context::executor_type(domain_);
    detail::initiate<void(error_code, T...), disk_wait>(
        std::move(done), ex, [this, what, bytes, work = std::move(work)](operation& op) mutable {
          sim_context& core = domain_.core;
          auto transfer =
              duration(static_cast<std::int64_t>(static_cast<double>(bytes) / disk_.faults.bytes_per_second * 1e9));
          duration takes = core.between(disk_.faults.latency_min, disk_.faults.latency_max) + transfer;
          if (recorder_.enabled()) recorder_.add({"disk " + domain_.host, what, core.now(), core.now() + takes, {}});
          op.state().core = &core;
          op.state().timer = core.at(core.now() + takes, domain_, [&op, work = std::move(work)]() mutable {
            std::tuple<error_code, T...> values = work();
            std::apply([&](auto&&... v) { op.complete(std::move(v)...); }, std::move(values));
          });
          op.on_cancel([](operation& op, asio::cancellation_type_t) {
            if (op.state().core->chance(0.5)) op.fail(asio::error::operation_aborted);
          });
        });
  }

  error_code failed(sys::errc_t e) {
    ++disk_.counts.errors;
    return system_error(e);
  }
  bool chance(double p) { return domain_.core.chance(p); }

  detail::sim_domain& domain_;
  disk& disk_;
  trace::recorder& recorder_;
  std::shared_ptr<std::set<std::string>> locked_ = std::make_shared<std::set<std::string>>();  // they end with the life
};

class disk::files_of::handle final : public file::impl {
 public:
  handle(files_of& files, std::shared_ptr<inode> file, bool writable, std::shared_ptr<void> lock,
         file_alignment alignment)
      : files_(files), file_(std::move(file)), writable_(writable), lock_(std::move(lock)), alignment_(alignment) {}

  asio::any_io_executor get_executor() const noexcept override { return sim_context::executor_type(files_.domain_); }

  void read_at(std::uint64_t offset, asio::mutable_buffer into, file::transfer_handler done) override {
    read_at(offset, std::vector{into}, std::move(done));
  }
  void write_at(std::uint64_t offset, asio::const_buffer from, file::transfer_handler done) override {
    write_at(offset, std::vector{from}, std::move(done));
  }

  void read_at(std::uint64_t offset, std::vector<asio::mutable_buffer> into, file::transfer_handler done) override {
    const auto bytes = asio::buffer_size(into);
    for (const auto& part : into)  // the buffers are the operation's from now on
      if (part.size() != 0) std::memset(part.data(), 0xdb, part.size());
    const auto no = refused(offset, into);
    files_.run(std::move(done), "read", bytes, [&files = files_, f = file_, offset, bytes, into = std::move(into), no] {
      disk& d = files.disk_;
      ++d.counts.reads;
      if (no) return std::tuple(no, std::size_t(0));
      if (files.chance(d.faults.read_error)) return std::tuple(files.failed(sys::io_error), std::size_t(0));
      const std::span live(f->live);
      const auto n = offset < live.size() ? std::min(bytes, live.size() - static_cast<std::size_t>(offset)) : 0;
      if (n != 0) asio::buffer_copy(into, asio::buffer(live.data() + offset, n));
      if (n != 0 && files.chance(d.faults.flip_read)) {
        ++d.counts.flips;
        auto& core = files.domain_.core;
        auto at = core.below(n);
        for (const auto& part : into) {
          if (at < part.size()) {
            static_cast<std::byte*>(part.data())[at] ^= std::byte(1 << core.below(8));
            break;
          }
          at -= part.size();
        }
      }
      return std::tuple(error_code(), n);
    });
  }

  void write_at(std::uint64_t offset, std::vector<asio::const_buffer> from, file::transfer_handler done) override {
    const auto bytes = asio::buffer_size(from);
    const auto no = writable_ ? refused(offset, from) : system_error(sys::bad_file_descriptor);
    files_.run(std::move(done), "write", bytes,
               [&files = files_, f = file_, offset, bytes, from = std::move(from), no] {
                 disk& d = files.disk_;
                 sim_context& core = files.domain_.core;
                 ++d.counts.writes;
                 if (no) return std::tuple(no, std::size_t(0));
                 std::size_t n = bytes;
                 error_code ec;
                 std::uint64_t grows = offset + n > f->live.size() ? offset + n - f->live.size() : 0;
                 if (files.chance(d.faults.no_space) || d.used() + grows > d.faults.capacity)
                   ec = files.failed(sys::no_space_on_device);
                 else if (files.chance(d.faults.write_error))
                   ec = files.failed(sys::io_error);
                 if (ec) n = core.below(n + 1);
                 inode::pending w{static_cast<std::size_t>(offset), std::vector<std::byte>(n)};
                 asio::buffer_copy(asio::buffer(w.bytes), from);
                 if (n != 0 && files.chance(d.faults.flip_write)) {
                   ++d.counts.flips;
                   w.bytes[core.below(n)] ^= std::byte(1 << core.below(8));
                 }
                 if (n != 0) {
                   inode::write(w.offset, w.bytes, f->live);
                   f->unsynced.push_back(std::move(w));
                 }
                 return std::tuple(ec, n);
               });
  }

  void sync(file::handler done) override {
    std::size_t bytes = 0;
    for (const auto& w : file_->unsynced) bytes += w.bytes.size();
    files_.run(std::move(done), "sync", bytes, [&files = files_, f = file_] {
      disk& d = files.disk_;
      ++d.counts.syncs;
      bool failed = files.chance(d.faults.sync_error);
      for (const auto& w : std::exchange(f->unsynced, {}))
        if (!failed) inode::write(w.offset, w.bytes, f->durable);
      return std::tuple(failed ? files.failed(sys::io_error) : error_code());
    });
  }

  result<std::uint64_t> size() const override { return file_->live.size(); }
  file_alignment alignment() const override { return alignment_; }

 private:
  template <class Buffers>
  error_code refused(std::uint64_t offset, const Buffers& memory) {
    bool good = true;
    for (const auto& part : memory) {
      good = files_.disk_.aligned(alignment_, offset, part) && good;
      offset += part.size();
    }
    return good ? error_code() : system_error(sys::invalid_argument);
  }

  files_of& files_;
  std::shared_ptr<inode> file_;
  bool writable_;
  std::shared_ptr<void> lock_;
  file_alignment alignment_;
};

void disk::files_of::open(std::string path, open_mode mode, bool direct, file_system::open_handler done) {
  run(std::move(done), "open", 0, [this, path = normal(path), mode, direct]() -> std::tuple<error_code, file> {
    if (chance(disk_.faults.open_error)) return {failed(sys::too_many_files_open), file()};
    auto found = disk_.live_.find(path);
    bool there = found != disk_.live_.end();
    if (is_directory(path)) return {system_error(sys::is_a_directory), file()};
    if (!is_directory(parent(path))) return {system_error(sys::no_such_file_or_directory), file()};
    if (mode == open_mode::create_new && there) return {system_error(sys::file_exists), file()};
    bool make = mode == open_mode::create || mode == open_mode::create_new || (mode == open_mode::lock && !there);
    if (!make && !there) return {system_error(sys::no_such_file_or_directory), file()};
    std::shared_ptr<void> lock;
    if (mode == open_mode::lock) {
      if (!locked_->insert(path).second) return {make_error_code(errc::in_use), file()};
      lock = std::shared_ptr<void>(nullptr, [all = locked_, path](void*) { all->erase(path); });
    }
    std::shared_ptr<inode> node = make ? std::make_shared<inode>() : found->second.file;
    if (make) disk_.commit({{path, entry{node}}});
    // As Linux has it: the file is made, and then there is no such way to it.
    if (direct && disk_.faults.direct.offset == 0) return {system_error(sys::invalid_argument), file()};
    return {error_code(),
            file(std::make_unique<handle>(*this, std::move(node), mode != open_mode::read, std::move(lock),
                                          direct ? disk_.faults.direct : file_alignment()))};
  });
}

void disk::files_of::remove(std::string path, file_system::handler done) {
  run(std::move(done), "remove", 0, [this, path = normal(path)]() -> std::tuple<error_code> {
    if (!disk_.live_.contains(path)) return system_error(sys::no_such_file_or_directory);
    if (is_directory(path)) {
      auto next = disk_.live_.upper_bound(path + "/");
      if (next != disk_.live_.end() && next->first.starts_with(path + "/"))
        return system_error(sys::directory_not_empty);
    }
    disk_.commit({{path, std::nullopt}});
    return error_code();
  });
}

void disk::files_of::rename(std::string from, std::string to, file_system::handler done) {
  run(std::move(done), "rename", 0, [this, from = normal(from), to = normal(to)]() -> std::tuple<error_code> {
    auto found = disk_.live_.find(from);
    if (found == disk_.live_.end() || !is_directory(parent(to))) return system_error(sys::no_such_file_or_directory);
    if (from == to) return error_code();
    if (is_directory(to) && found->second.file) return system_error(sys::is_a_directory);
    change c{{from, std::nullopt}, {to, found->second}};
    if (!found->second.file)
      for (const auto& [path, entry] : disk_.live_)
        if (path.starts_with(from + "/")) {
          c.emplace_back(path, std::nullopt);
          c.emplace_back(to + path.substr(from.size()), entry);
        }
    disk_.commit(std::move(c));
    return error_code();
  });
}

void disk::files_of::list(std::string directory, file_system::list_handler done) {
  run(std::move(done), "list", 0,
      [this, directory = normal(directory)]() -> std::tuple<error_code, std::vector<directory_entry>> {
        if (!is_directory(directory))
          return {system_error(disk_.live_.contains(directory) ? sys::not_a_directory : sys::no_such_file_or_directory),
                  {}};
        std::vector<directory_entry> entries;
        std::string prefix = directory.empty() ? "" : directory + "/";
        for (auto it = disk_.live_.lower_bound(prefix); it != disk_.live_.end() && it->first.starts_with(prefix);
             ++it) {
          std::string name = it->first.substr(prefix.size());
          if (name.find('/') != name.npos) continue;
          const auto& f = it->second.file;
          entries.push_back({std::move(name), !f, f ? f->live.size() : 0});
        }
        return {error_code(), std::move(entries)};
      });
}

void disk::files_of::make_directories(std::string path, file_system::handler done) {
  run(std::move(done), "make directories", 0, [this, path = normal(path)]() -> std::tuple<error_code> {
    change c;
    for (std::size_t end = 0; end != path.npos;) {
      end = path.find('/', end + 1);
      std::string part = path.substr(0, end);
      if (part.empty()) continue;
      auto found = disk_.live_.find(part);
      if (found == disk_.live_.end())
        c.emplace_back(part, entry{});
      else if (found->second.file)
        return system_error(sys::not_a_directory);
    }
    if (!c.empty()) disk_.commit(std::move(c));
    return error_code();
  });
}

void disk::files_of::sync_directory(std::string path, file_system::handler done) {
  run(std::move(done), "sync directory", 0, [this, path = normal(path)]() -> std::tuple<error_code> {
    if (!is_directory(path)) return system_error(sys::no_such_file_or_directory);
    if (chance(disk_.faults.sync_error)) return failed(sys::io_error);
    for (const change& c : std::exchange(disk_.journal_, {})) disk_.apply(c, disk_.durable_);
    return error_code();
  });
}

}  // namespace cokv::sim

namespace cokv::detail {

void add_sim_files(sim_domain& domain) {
  if (!domain.disk) domain.disk = std::make_shared<sim::disk>();
  asio::add_service(domain.context, new file_system(domain.context, sim_context::executor_type(domain),
                                                    std::make_unique<sim::disk::files_of>(domain)));
}

}  // namespace cokv::detail
