#include "cokv/engine/weights.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "cokv/runtime/detail/json_file.hpp"

namespace cokv {
namespace {

using detail::fields;
using detail::printable;

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian, and so are the views");

constexpr std::uint64_t header_limit = 100'000'000, index_limit = 64 << 20;
constexpr std::size_t most_dimensions = 8, most_shards = 4096;

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

// What lies in a file: a tensor, or the place of one whose type nobody computes with (a mask, a list of positions), which
// is an error when it is asked for and not before.
struct stored_tensor {
  tensor_view view;
  std::string_view other;  // its type's name; empty where view.type is it
};
using stored_map = std::map<std::string, stored_tensor, std::less<>>;

struct other_type {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr other_type other_types[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I16", 2},
                                      {"U16", 2},  {"I32", 4}, {"U32", 4}, {"I64", 8},     {"U64", 8},     {"F64", 8}};

// The bytes of an element.
std::uint64_t read_type(const fields& f, stored_tensor& out) {
  auto name = f.string("dtype");
  if (name == "F32") return size_of(out.view.type = dtype::f32);
  if (name == "F16") return size_of(out.view.type = dtype::f16);
  if (name == "BF16") return size_of(out.view.type = dtype::bf16);
  for (auto& t : other_types)
    if (name == t.name) return out.other = t.name, t.bytes;
  f.fail("dtype", printable(name) + " is not supported; F32, F16 and BF16 are");
}

stored_tensor read_tensor(const fields& f, std::span<const std::byte> data) {
  stored_tensor stored;
  auto& out = stored.view;
  auto& shape = f.array("shape");
  std::uint64_t bytes = read_type(f, stored);
  if (shape.size() > most_dimensions) f.fail("shape", "more than " + std::to_string(most_dimensions) + " dimensions");
  for (auto& dimension : shape) {
    out.shape.push_back(detail::to_uint(dimension, f.place("shape"), 0, std::uint64_t{1} << 48));
    if (__builtin_mul_overflow(bytes, out.shape.back(), &bytes)) f.fail("shape", "too large");
  }
  auto& offsets = f.array("data_offsets");
  if (offsets.size() != 2) f.fail("data_offsets", "expected two numbers");
  auto begin = detail::to_uint(offsets[0], f.place("data_offsets[0]"), 0, data.size());
  auto end = detail::to_uint(offsets[1], f.place("data_offsets[1]"), begin, data.size());
  if (end - begin != bytes)
    f.fail("data_offsets", std::to_string(end - begin) + " bytes, but shape " + shape_text(out.shape) + " takes " +
                               std::to_string(bytes));
  out.bytes = data.subspan(begin, bytes);
  return stored;
}

using tensor_map = std::map<std::string, tensor_view, std::less<>>;

stored_map read_safetensors(std::span<const std::byte> file, const std::string& name) {
  std::uint64_t header = 0;
  if (file.size() < sizeof header)
    throw config_error(name + ": truncated: " + std::to_string(file.size()) + " bytes are no safetensors header");
  std::memcpy(&header, file.data(), sizeof header);
  file = file.subspan(sizeof header);
  if (header > header_limit)
    throw config_error(name + ": header: " + std::to_string(header) + " bytes, more than the limit of " +
                       std::to_string(header_limit));
  if (header > file.size())
    throw config_error(name + ": header: claims " + std::to_string(header) + " bytes, only " +
                       std::to_string(file.size()) + " follow");
  std::string_view text(reinterpret_cast<const char*>(file.data()), header);
  auto data = file.subspan(header);
  auto value = detail::parse_json(text, name + ": header");
  fields top(value, name + ": ");
  stored_map out;
  for (auto& [key, entry] : top.raw()) {
    if (key == "__metadata__") continue;
    std::string tensor(key.data(), key.size());
    out.emplace(tensor, read_tensor(fields(entry, name + ": ", tensor), data));
  }

  // Every byte belongs to exactly one tensor: a gap or an overlap means that header and data are not of one file.
  std::vector<const stored_map::value_type*> order;
  for (auto& item : out) order.push_back(&item);
  auto begin = [&](const stored_tensor& t) { return static_cast<std::size_t>(t.view.bytes.data() - data.data()); };
  std::sort(order.begin(), order.end(), [&](auto* a, auto* b) {
    return std::pair(begin(a->second), a->second.view.bytes.size()) <
           std::pair(begin(b->second), b->second.view.bytes.size());
  });
  std::size_t end = 0;
  const std::string* before = nullptr;
  for (auto* item : order) {
    auto at = begin(item->second);
    if (at < end)
      throw config_error(name + ": " + printable(item->first) + ".data_offsets: overlaps " + printable(*before));
    if (at > end)
      throw config_error(name + ": " + printable(item->first) + ".data_offsets: " + std::to_string(at - end) +
                         " bytes before it belong to no tensor");
    end = at + item->second.view.bytes.size();
    before = &item->first;
  }
  if (end != data.size())
    throw config_error(name + ": header: tensors take " + std::to_string(end) + " bytes, " +
                       std::to_string(data.size()) + " follow the header");
  return out;
}

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
    return read_safetensors(files.back()->bytes(), file.string());
  }

  void map_shards(const std::filesystem::path& index) {
    auto name = index.string();
    auto value = detail::parse_json(detail::read_file(index, index_limit), name);
    auto places = fields(value, name + ": ").object("weight_map");
    std::map<std::string, stored_map> shards;
    for (auto& [key, entry] : places.raw()) {
      std::string_view tensor(key.data(), key.size());
      auto* text = entry.if_string();
      if (!text) places.fail(tensor, "expected a file name, found " + detail::kind_name(entry));
      std::string file(text->data(), text->size());
      if (file.empty() || file == "." || file == ".." || file.find_first_of(std::string_view("/\0", 2)) != file.npos)
        places.fail(tensor, printable(file) + " is not the name of a file beside it");
      auto shard = shards.find(file);
      if (shard == shards.end()) {
        if (shards.size() == most_shards) places.fail(tensor, "more than " + std::to_string(most_shards) + " files");
        shard = shards.emplace(file, map_file(index.parent_path() / file)).first;
      }
      auto found = shard->second.find(tensor);
      if (found == shard->second.end()) places.fail(tensor, "is not in " + printable(file));
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
