#include "cokv/engine/weights.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "cokv/runtime/detail/json_file.hpp"
#include "safetensors.hpp"

namespace cokv {
namespace {

using detail::printable;
using detail::stored_map;
using detail::stored_tensor;
using tensor_map = std::map<std::string, tensor_view, std::less<>>;

constexpr std::uint64_t index_limit = 64 << 20;
constexpr std::size_t most_shards = 4096;

class mapping {
 public:
  explicit mapping(const std::filesystem::path& path) {
    auto fail = [&](int error) -> void {
      throw config_error(path.string() + ": " + std::error_code(error, std::generic_category()).message());
    };
    int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) fail(errno);
    struct stat info{};
    int error = ::fstat(fd, &info) != 0 ? errno : 0;
    if (error == 0 && S_ISREG(info.st_mode) && info.st_size > 0) {
      size_ = static_cast<std::size_t>(info.st_size);
      data_ = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
      if (data_ == MAP_FAILED) error = errno;
    }
    ::close(fd);
    if (error != 0) fail(error);
    if (!S_ISREG(info.st_mode)) throw config_error(path.string() + ": not a regular file");
  }
  mapping(const mapping&) = delete;
  mapping& operator=(const mapping&) = delete;
  ~mapping() {
    if (size_ > 0) ::munmap(data_, size_);
  }
  std::span<const std::byte> bytes() const noexcept { return {static_cast<const std::byte*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace

struct weights::state {
  std::filesystem::path path;
  std::vector<std::unique_ptr<mapping>> files;
  tensor_map tensors;
  std::map<std::string, std::string_view, std::less<>> others;  // the types of tensors that can't be taken
  std::uint64_t bytes = 0;

  void add(const std::string& name, const stored_tensor& t) {
    if (t.other.empty())
      tensors.emplace(name, t.view);
    else
      others.emplace(name, t.other);
  }

  stored_map map_file(const std::filesystem::path& file) {
    files.push_back(std::make_unique<mapping>(file));
    return detail::read_safetensors(files.back()->bytes(), file.string());
  }

  void map_shards(const std::filesystem::path& index) {
    const auto name = index.string();
    const auto fail = [&](const std::string& tensor, const std::string& what) -> void {
      throw config_error(name + ": weight_map." + printable(tensor) + ": " + what);
    };
    std::map<std::string, stored_map> shards;
    for (auto& [tensor, file] : detail::read_safetensors_index(detail::read_file(index, index_limit), name)) {
      auto shard = shards.find(file);
      if (shard == shards.end()) {
        if (shards.size() == most_shards) fail(tensor, "more than " + std::to_string(most_shards) + " files");
        shard = shards.emplace(file, map_file(index.parent_path() / file)).first;
      }
      auto found = shard->second.find(tensor);
      if (found == shard->second.end()) fail(tensor, "is not in " + printable(file));
      add(found->first, found->second);
    }
  }

  std::shared_ptr<const state> finish(std::filesystem::path from) && {
    path = std::move(from);
    for (auto& [name, t] : tensors) bytes += t.bytes.size();
    return std::make_shared<const state>(std::move(*this));
  }
};

std::string shape_text(std::span<const std::uint64_t> shape) {
  std::string out = "[";
  for (auto d : shape) out += (out.size() > 1 ? ", " : "") + std::to_string(d);
  return out + "]";
}

weights weights::open_file(const std::filesystem::path& file) {
  state s;
  for (auto& [name, t] : s.map_file(file)) s.add(name, t);
  return weights(std::move(s).finish(file));
}

weights weights::open(const std::filesystem::path& dir) {
  auto single = dir / "model.safetensors", index = dir / "model.safetensors.index.json";
  std::error_code ec;
  state s;
  if (std::filesystem::exists(single, ec)) {
    for (auto& [name, t] : s.map_file(single)) s.add(name, t);
    return weights(std::move(s).finish(single));
  }
  if (!std::filesystem::exists(index, ec))
    throw config_error(dir.string() + ": neither model.safetensors nor model.safetensors.index.json is there");
  s.map_shards(index);
  return weights(std::move(s).finish(index));
}

const std::filesystem::path& weights::path() const noexcept { return state_->path; }
bool weights::contains(std::string_view name) const { return state_->tensors.contains(name); }
const tensor_map& weights::tensors() const noexcept { return state_->tensors; }
std::uint64_t weights::bytes() const noexcept { return state_->bytes; }
std::shared_ptr<const void> weights::keep_alive() const noexcept { return state_; }

const tensor_view& weights::expect(std::string_view name, std::initializer_list<std::uint64_t> shape) const {
  std::span<const std::uint64_t> want(shape.begin(), shape.size());
  auto found = state_->tensors.find(name);
  auto what = state_->path.string() + ": " + printable(name) + ": ";
  if (auto other = state_->others.find(name); other != state_->others.end())
    throw config_error(what + std::string(other->second) + " is not supported; F32, F16 and BF16 are");
  if (found == state_->tensors.end()) throw config_error(what + "missing, expected shape " + shape_text(want));
  if (!std::ranges::equal(found->second.shape, want))
    throw config_error(what + "expected shape " + shape_text(want) + ", found " + shape_text(found->second.shape));
  return found->second;
}

}  // namespace cokv
