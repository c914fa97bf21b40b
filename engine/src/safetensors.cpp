#include "safetensors.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cokv/runtime/detail/json_file.hpp"

namespace cokv::detail {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian, and so are the views");

constexpr std::uint64_t header_limit = 100'000'000;
constexpr std::size_t most_dimensions = 8;

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

}  // namespace

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

std::map<std::string, std::string> read_safetensors_index(std::string_view text, const std::string& name) {
  const auto value = parse_json(text, name);
  const auto places = fields(value, name + ": ").object("weight_map");
  std::map<std::string, std::string> out;
  for (auto& [key, entry] : places.raw()) {
    const std::string tensor(key);
    auto* file = entry.if_string();
    if (!file) places.fail(tensor, "expected a file name, found " + kind_name(entry));
    const std::string_view in(*file);
    if (in.empty() || in == "." || in == ".." || in.find_first_of(std::string_view("/\0", 2)) != in.npos)
      places.fail(tensor, printable(in) + " is not the name of a file beside it");
    out.emplace(tensor, in);
  }
  return out;
}

}  // namespace cokv::detail
