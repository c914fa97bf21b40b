// Writes inputs that the fuzz targets start from: cokv_fuzz_seeds FOLDER makes FOLDER/<target>/<name>.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cokv/kvstream/block_places.hpp"
#include "cokv/kvstream/frame_stream.hpp"
#include "cokv/runtime/error.hpp"
#include "detail/bytes.hpp"
#include "fuzz/input.hpp"
#include "link/hello.hpp"
#include "link/link_frame.hpp"
#include "link/window_layout.hpp"
#include "store/log_index.hpp"

namespace {

using namespace cokv;
using bytes = std::vector<std::byte>;

std::filesystem::path folder;

void save(const std::string& target, const std::string& name, std::string_view data) {
  std::filesystem::create_directories(folder / target);
  std::ofstream(folder / target / name, std::ios::binary) << data;
}

// With nothing mended, with digests mended, and with all.
void save_wire(const std::string& target, const std::string& name, const bytes& wire, char how) {
  const std::string_view rest(reinterpret_cast<const char*>(wire.data()), wire.size());
  for (char mend : {0, fuzz::digests | fuzz::trailers, 31}) {
    std::string data{mend, how, 0, static_cast<char>(name.size())};
    save(target, name + "-" + std::to_string(mend), data.append(rest));
  }
}
void save_wire(const std::string& target, const std::string& name, const bytes& wire) {
  save_wire(target, name, wire, target == "link" ? 0x15 : target == "disk" ? 0 : 0x7f);
}

stream_begin about() {
  stream_begin b;
  b.ns.bytes.fill(std::byte{7});
  b.generation = 42;
  b.layout.segments = {24, 8};
  b.keys.resize(3);
  for (std::size_t i = 0; i < 3; ++i) b.keys[i].bytes.fill(static_cast<std::byte>(i + 1));
  return b;
}

void send(bytes& out, stream_writer& writer, std::uint32_t layer, std::uint32_t block, bool intact = true) {
  const auto head = writer.segment(layer, block);
  const bytes data(writer.about().layout.segments[layer], static_cast<std::byte>(16 * layer + block));
  auto trailer = seal(head, data);
  if (!intact) trailer[3] ^= std::byte{1};
  detail::append(out, head);
  detail::append(out, data);
  detail::append(out, trailer);
}

void streams(const std::string& target) {
  const auto make = [&](const std::string& name, auto&& tell) {
    stream_writer writer(about());
    auto out = writer.begin();
    tell(out, writer);
    save_wire(target, name, out);
  };
  make("whole", [](bytes& out, stream_writer& w) {
    for (auto layer : {0u, 1u})
      for (auto block : {0u, 1u, 2u}) send(out, w, layer, block);
    detail::append(out, w.end());
  });
  make("damaged", [](bytes& out, stream_writer& w) {
    for (auto layer : {0u, 1u})
      for (auto block : {0u, 1u, 2u}) send(out, w, layer, block, block != 1 || layer != 0);
    detail::append(out, w.end());
  });
  make("missing", [](bytes& out, stream_writer& w) {
    send(out, w, 0, 0);
    detail::append(out, w.missing(2, errc::not_found));
    send(out, w, 0, 1);
    detail::append(out, w.missing(1, errc::store_full));
    send(out, w, 1, 0);
    detail::append(out, w.end());
  });
  make("error", [](bytes& out, stream_writer& w) {
    send(out, w, 0, 0);
    detail::append(out, w.error(errc::unavailable, "the disk is gone\n"));
  });
  make("cut", [](bytes& out, stream_writer& w) {
    send(out, w, 0, 0);
    out.resize(out.size() - 20);
  });
  save_wire(target, "ack", ack_frame(about().ns, 42, errc::not_found, 2));
  save_wire(target, "large", [] {
    frame_header h;
    h.type = frame_type::segment;
    h.length = std::uint64_t{1} << 60;
    const auto head = encode(h);
    return bytes(head.begin(), head.end());
  }());
}

void add(bytes& out, detail::link_header h, const bytes& payload = {}) {
  if (h.type != detail::link_type::get) h.length = payload.size();
  const auto at = out.size();
  detail::append(out, encode(h));
  detail::append(out, payload);
  if (h.has_trailer()) detail::append(out, digest_of(std::span(out).subspan(at)));
}

void links() {
  using enum detail::link_type;
  const auto sealed = digest_algorithm::xxh3_64;
  detail::link_hello greeting;
  greeting.lanes = 2;
  greeting.credits = greeting.messages = 8;
  greeting.chunk = 4096;
  greeting.name = "worker";
  greeting.topology = "pp2xtp2";
  greeting.sessions = {3, 4};
  const auto payload = encode(greeting);
  bytes out;
  add(out, {.type = hello, .algorithm = sealed}, payload);
  save_wire("link", "hello", out);
  add(out, {.type = put, .algorithm = sealed, .request = 1, .window = 2, .generation = 9}, bytes(100, std::byte{5}));
  add(out, {.type = done, .request = 1});
  add(out, {.type = get, .algorithm = sealed, .request = 2, .window = 2, .length = 33});
  add(out, {.type = data, .request = 2}, bytes(33, std::byte{6}));
  add(out, {.type = message, .algorithm = sealed, .request = 3}, bytes(40, std::byte{7}));
  add(out, {.type = ping, .request = 4});
  add(out, {.type = fence, .window = 1});
  add(out, {.type = commit, .request = 5, .window = 2, .generation = 9});
  add(out, {.type = goodbye, .algorithm = sealed, .code = 13}, bytes(4, std::byte{'x'}));
  save_wire("link", "all", out);
  out.back() ^= std::byte{1};
  save_wire("link", "damaged", out);
  out.resize(out.size() - 9);
  save_wire("link", "cut", out);
  out.clear();
  const auto layout =
      encode(detail::window_layout{.forgotten = {1}, .passed = {2, 3}, .pieces = {{2, 64, 100}, {3, 0, 9}}});
  add(out, {.type = open, .code = 1, .request = 1, .window = 2, .generation = 9});
  add(out, {.type = grant, .algorithm = sealed, .request = 1}, layout);
  for (auto type : {put, data}) {
    detail::append(out, detail::encode(detail::link_header{
                            .type = type, .algorithm = sealed, .request = 2, .length = 100, .in_place = true}));
    detail::append(out, std::uint64_t{77});
  }
  detail::append(out, detail::encode(detail::link_header{.type = put, .request = 3, .length = 100, .in_place = true}));
  add(out, {.type = get, .algorithm = sealed, .request = 4, .length = 50, .in_place = true});
  add(out, {.type = recall, .code = 1, .request = 5, .window = 2, .generation = 9});
  save_wire("link", "in-place", out);
  out.clear();
  const std::vector<detail::put_place> two = {{1, 0, 60}, {2, 200, 40}};
  add(out, {.type = places, .algorithm = sealed}, encode(two));
  add(out, {.type = put, .algorithm = sealed, .window = 2, .generation = 9, .offset = 2, .listed = true},
      bytes(100, std::byte{5}));
  add(out, {.type = dones, .algorithm = sealed, .code = 12}, encode_requests(two));
  save_wire("link", "joined", out);
  out[70] ^= std::byte{1};
  save_wire("link", "joined-damaged", out);
  out.clear();
  add(out, {.type = places, .algorithm = sealed}, bytes(23));
  add(out, {.type = dones, .algorithm = sealed}, bytes(9));
  save_wire("link", "joined-nonsense", out);
  out.clear();
  add(out, {.type = get, .length = std::uint64_t{1} << 60});
  save_wire("link", "large", out);
  const std::string_view raw(reinterpret_cast<const char*>(payload.data()), payload.size());
  save("link", "bare-hello", std::string(4, '\0').append(raw));
  save("link", "bare-layout", std::string(4, '\0').append(reinterpret_cast<const char*>(layout.data()), layout.size()));
}

// The index of a file, a chunk each, with an entry of every kind.
void disks() {
  using namespace detail;
  log_record r;
  r.extent.at = 8192;
  r.extent.places = 3;
  r.extent.layout = std::make_shared<const block_layout>(block_layout{{24, 8}});
  for (std::uint32_t i = 0; i < 2; ++i) {
    r.blocks.push_back({{}, i});
    r.blocks.back().key.bytes.fill(static_cast<std::byte>(i + 1));
    r.digests.insert(r.digests.end(), {i, i + 7});
  }
  const log_removal removal{{r.ns, r.blocks[0].key}, 9};
  const auto sound = encode_log_body(r);
  auto unsound = r;
  unsound.extent.alignment = 512;
  for (bool sealed : {false, true})
    for (const auto& body : {sound, encode_log_body(unsound)}) {
      log_index index(7, sealed, 4096);
      auto chunk = index.take_writes()[0].bytes;
      index.add(log_kind::record, 3, 1, body);
      index.add(log_kind::removal, 4, 1, encode_log_body(removal));
      if (sealed) index.seal();
      while (!sealed && index.end() == 4096) index.add(log_kind::record, 5, 5, body);  // up to a link
      index.take_writes();
      // Short: what lies between the entries and the last 64 bytes is left out.
      bytes wire(chunk.bytes().begin(), chunk.bytes().begin() + 64 + 2 * 320);
      const auto last = chunk.bytes().last(64);
      wire.insert(wire.end(), last.begin(), last.end());
      save_wire("disk", "chunk-" + std::to_string(sealed) + (body == sound ? "" : "-unsound"), wire);
      wire[70] ^= std::byte{1};
      save_wire("disk", "damaged-" + std::to_string(sealed) + (body == sound ? "" : "-unsound"), wire);
    }
  // Of a tenant, and one that was written before there were any.
  r.tenant = "team a";
  log_index index(7, false, 4096);
  auto chunk = index.take_writes()[0].bytes;
  index.add(log_kind::record, 3, 1, encode_log_body(r));
  index.add(log_kind::record, 4, 1, sound);
  index.take_writes();
  bytes wire(chunk.bytes().begin(), chunk.bytes().begin() + 64 + 2 * 256);
  const auto last = chunk.bytes().last(64);
  wire.insert(wire.end(), last.begin(), last.end());
  wire[64 + 256 + 4] = std::byte{3};
  save_wire("disk", "tenants", wire);
}

// Three blocks of two layers: an answer, and a write that tells of them in four pieces.
void places() {
  block_places all{.memory = 0, .generation = 42, .layers = 2, .lives = {5, 6, 7}, .places = {}};
  for (std::uint64_t i = 0; i < 6; ++i) all.places.push_back({i * 8, i + 100});
  const char how = 1 | 2 << 2;
  const auto save_both = [](const char* name, const bytes& wire, char how) {
    save_wire("places", name, wire, how);
    auto damaged = wire;
    damaged[40] ^= std::byte{1};
    save_wire("places", std::string(name) + "-damaged", damaged, how);
  };
  save_both("answer", all.encode(), how);
  save_wire("places", "empty",
            block_places{.memory = 3, .generation = 42, .layers = 2, .lives = {}, .places = {}}.encode(), how);
  bytes out;
  for (std::size_t layer = 0; layer < 2; ++layer)
    for (std::size_t first : {0, 2}) {
      block_places some{.memory = 0, .generation = 42, .layers = 1, .lives = {}, .places = {}};
      for (auto i = first; i < (first == 0 ? 2u : 3u); ++i) {
        some.lives.push_back(0);
        some.places.push_back(all.at(static_cast<std::uint32_t>(layer), i));
      }
      detail::append(out, some.encode());
    }
  detail::append(out, block_places{.memory = 0, .generation = 42, .layers = 0, .lives = {}, .places = {}}.encode());
  save_both("whole-write", out, static_cast<char>(0x80 | how));
  save_wire("places", "lies-beyond-end", out, static_cast<char>(0x80 | how));  // 15 letters: of 23 bytes of memory
}

void texts() {
  const char* all[] = {"pp4xtp2",      "pp4xtp2xmb8",  "pp3@0,10,21xtp2",       "pp03xtp2",
                       "bf16",         "fp8_e4m3",     "127.0.0.1:9009",        "[::1]:80",
                       ":7000",        "tcp://host:1", "tcp://[fe80::1]:65535", "http://127.0.0.1:9009",
                       "http://[::1]", "https://host", "unix:///run/x",         "host:65536"};
  int i = 0;
  for (const auto* text : all) save("text", "text-" + std::to_string(i++), text);
  save("text", "id", "00112233445566778899aabbccddeeffFFEEDDCCBBAA99887766554433221100");
}

void requests() {
  const std::string post = "POST /echo HTTP/1.1\r\nHost: x\r\n", key = "Authorization: Bearer k\r\n";
  const std::pair<const char*, std::string> all[] = {
      {"get", "GET /hello/world:now?q=1 HTTP/1.1\r\nHost: x\r\n\r\n"},
      {"pipelined",
       "GET /open HTTP/1.1\r\nHost: x\r\n\r\nHEAD /open HTTP/1.1\r\nHost: x\r\n\r\nGET /no HTTP/1.1\r\nHost: "
       "x\r\n\r\n"},
      {"old", "GET /open HTTP/1.0\r\n\r\n"},
      {"post", post + "Content-Length: 4\r\n\r\nbody"},
      {"key", post + key + "Content-Length: 4\r\n\r\nbody"},
      {"chunked", post + "Transfer-Encoding: chunked\r\n\r\n4;a=b\r\nbody\r\n1\r\nx\r\n0\r\nA: b\r\n\r\n"},
      {"expects", post + "Expect: 100-continue\r\nContent-Length: 4\r\n\r\n"},
      {"large", post + "Content-Length: 600\r\n\r\n"},
      {"header", "GET /open HTTP/1.1\r\nHost: x\r\nA: " + std::string(1100, 'a') + "\r\n\r\n"},
      {"slow", "GET /open HTTP/1.1\r\nHo"},
      {"both", post + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {"target", "GET http://x/open?a=%20&b#c HTTP/1.1\r\nHost: x\r\n\r\n"},
  };
  for (const auto& [name, text] : all)
    for (const char how : {0, 1}) save("http", name + std::to_string(how), std::string{0, how, 1, 2} + text);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fputs("usage: cokv_fuzz_seeds FOLDER\n", stderr), 2;
  folder = argv[1];
  streams("frame");
  streams("stream");
  links();
  disks();
  places();
  requests();
  texts();
}
