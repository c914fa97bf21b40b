// How fast does KV get into a neighbour process's memory? Over shm:// the sender copies into the window by itself, past
// the caches, and the receiver verifies it where it lies; beside it, in the same run, a memcpy for each extent into the
// same memory by one thread, and what the machine gives: one thread that copies as the link does; and, for the work that
// digests mean, one that only copies and digests, one that only verifies, with nothing between them but a count. Extents
// of 4 KiB to 16 MiB lie scattered in the window, and are put in chunks of 1 MiB or an extent, whichever is more; then
// each by itself.
//
//     bench_links_shm [--bytes 2GiB] [--set 128MiB] [--repeat 7] [--from 4KiB] [--to 16MiB] [--json FILE]
#include <cstring>
#include <semaphore>

#include "cokv/runtime/memory_handle.hpp"
#include "link/copy_range.hpp"
#include "link_table.hpp"

namespace {

using namespace cokv;
using namespace cokv::bench;

void copy_each(const buffer& from, const std::vector<buffer>& into, std::size_t bytes) {
  const auto extent = into.front().size();
  for (std::size_t done = 0; done < bytes; done += extent) {
    const auto at = done % from.size();
    std::memcpy(into[at / extent].data(), from.data() + at, extent);
  }
}

void copy_past_caches(const buffer& from, const std::vector<buffer>& into, std::size_t bytes, std::size_t chunk) {
  using namespace cokv::detail;
  const auto extent = into.front().size();
  const std::vector<buffer> source{from};
  for (std::size_t done = 0; done < bytes; done += chunk) {
    const auto at = done % from.size();
    piece_cursor to(into, at / extent, at % extent), what(source, 0, at);
    copy_range(nullptr, to, what, chunk);
  }
}

void copy_and_verify(const buffer& from, const std::vector<buffer>& into, std::size_t bytes, std::size_t chunk) {
  using namespace cokv::detail;
  const auto extent = into.front().size();
  const std::vector<buffer> source{from};
  std::vector<std::uint64_t> digests(bytes / chunk);
  const auto ahead = std::max<std::size_t>(from.size() / chunk / 2, 1);  // never over what is not verified yet
  std::counting_semaphore<> room(static_cast<std::ptrdiff_t>(ahead)), made(0);
  const auto place = [&](std::size_t i) {
    const auto at = i * chunk % from.size();
    return piece_cursor(into, at / extent, at % extent);
  };
  std::jthread verifier([&] {
    for (std::size_t i = 0; i < digests.size(); ++i) {
      made.acquire();
      digest_state d;
      auto of = place(i);
      digest_range(d, of, chunk);
      must(d.value() == digests[i], "verifying");
      room.release();
    }
  });
  for (std::size_t i = 0; i < digests.size(); ++i) {
    room.acquire();
    digest_state d;
    auto to = place(i);
    piece_cursor what(source, 0, i * chunk % from.size());
    copy_range(&d, to, what, chunk);
    digests[i] = d.value();
    made.release();
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"How fast does KV get into a neighbour process's memory?"};
  link_settings s;
  s.bytes = std::uint64_t{2} << 30;  // so long that where the system has put the threads at first hardly counts
  s.set = 128 << 20;
  s.add_to(app);
  CLI11_PARSE(app, argc, argv);

  auto from = buffer::host(s.set), into = allocate_shared(s.set).value();
  fill(from);
  std::printf("into shared memory, %s a run, medians of %d\n\n", format_size(s.bytes).c_str(), s.repeat);
  link_table table("shm", "extent",
                   {{"raw", "memcpy each", true},
                    {"past_caches", "copied past the caches"},
                    {"two_threads", "copied and verified by two threads"},
                    {"link", "link"},
                    {"digest", "with digests"},
                    {"put", "an extent a put"},
                    {"put_digest", "that with digests"}});
  table.heading();
  for (auto extent : s.chunks()) {
    const auto pieces = scattered(into, extent);
    const auto chunk = std::max<std::size_t>(extent, 1 << 20);
    worker near;
    linked off(near, listening_at("shm"), pieces, {.digest = digest_algorithm::none});
    linked on(near, listening_at("shm"), pieces, {.digest = digest_algorithm::xxh3_64});
    copy_each(from, pieces, s.set);
    for (int r = 0; r < s.repeat; ++r) {
      std::vector<throughput> round{timed(s.bytes, [&] { copy_each(from, pieces, s.bytes); }),
                                    timed(s.bytes, [&] { copy_past_caches(from, pieces, s.bytes, chunk); }),
                                    timed(s.bytes, [&] { copy_and_verify(from, pieces, s.bytes, chunk); })};
      for (auto each : {chunk, extent})
        for (auto* over : {&off, &on})
          round.push_back(timed(s.bytes, [&] { near.get(put_all(over->to(), from, s.bytes, each)); }));
      table.add(std::move(round));
    }
    for (std::size_t i = 0; i < pieces.size(); ++i)
      must(std::memcmp(from.data() + i * extent, pieces[i].data(), extent) == 0, "comparing what arrived");
    table.row(extent);
  }
  table.write(s.json);
}
