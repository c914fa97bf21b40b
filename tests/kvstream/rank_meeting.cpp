// What ranks say before they add up: as it was written, or refused.
#include "rank_meeting.hpp"

#include <doctest/doctest.h>

#include "cokv/runtime/error.hpp"
#include "kvstream/hex.hpp"

using namespace cokv;
using namespace cokv::detail;

namespace {

nccl_gpu some_gpu() {
  nccl_gpu out{.version = 22940};
  for (std::size_t i = 0; i < out.uuid.size(); ++i) out.uuid[i] = static_cast<std::byte>(0x11 * i);
  return out;
}

}  // namespace

TEST_CASE("rank_meeting: the bytes that the document gives, and back") {
  CHECK(to_hex(encode_gpu(some_gpu())) == golden_hex("rank gpu"));
  CHECK(to_hex(encode_joined(true)) == golden_hex("rank joined"));
  CHECK(decode_gpu(encode_gpu(some_gpu())).value() == some_gpu());
  auto sharing = some_gpu();
  sharing.shares = true;
  CHECK(decode_gpu(encode_gpu(sharing)).value() == sharing);
  for (bool joined : {false, true}) CHECK(decode_joined(encode_joined(joined)).value() == joined);
  std::vector<std::byte> id(128);
  CHECK(decode_group_id(encode_group_id({})).value().empty());
  CHECK(decode_group_id(encode_group_id(id)).value().empty());
  id[127] = std::byte{1};
  CHECK(decode_group_id(encode_group_id(id)).value() == id);
  CHECK(encode_gpu({}).size() == gpu_bytes);
  CHECK(encode_group_id({}).size() == group_id_bytes);
  CHECK(encode_joined({}).size() == joined_bytes);
}

TEST_CASE("rank_meeting: what is none of its messages is refused") {
  for (std::size_t at : {0, 4}) {
    auto gpu = encode_gpu(some_gpu()), id = encode_group_id({}), joined = encode_joined(true);
    for (auto* m : {&gpu, &id, &joined}) (*m)[at] ^= std::byte{2};
    CHECK(decode_gpu(gpu).error() == errc::protocol);
    CHECK(decode_group_id(id).error() == errc::protocol);
    CHECK(decode_joined(joined).error() == errc::protocol);
  }
  CHECK(decode_gpu(encode_joined(true)).error() == errc::protocol);
  CHECK(decode_group_id({}).error() == errc::protocol);
  auto neither = encode_joined(true), nor = encode_gpu(some_gpu());
  neither[8] = nor[28] = std::byte{2};
  CHECK(decode_joined(neither).error() == errc::protocol);
  CHECK(decode_gpu(nor).error() == errc::protocol);
}

TEST_CASE("rank_meeting: GPUs add up where each rank has another one or may share it, and the same NCCL") {
  auto a = some_gpu(), b = some_gpu();
  CHECK(!can_add_up(std::array{a, b}));
  a.shares = true;
  CHECK(!can_add_up(std::array{a, b}));
  CHECK(!can_add_up(std::array{b, a}));
  b.shares = true;
  CHECK(can_add_up(std::array{a, b}));
  b.shares = false;
  CHECK(!can_add_up(std::array{a, a, b}));
  a.shares = false;
  b.uuid[3] = std::byte{0};
  CHECK(can_add_up(std::array{a, b}));
  CHECK(!can_add_up(std::array{a, b, a}));
  b.version = 22950;
  CHECK(!can_add_up(std::array{a, b}));
  a.version = b.version = 0;
  CHECK(!can_add_up(std::array{a, b}));
}
