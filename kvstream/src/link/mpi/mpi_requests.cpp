#include "link/mpi/mpi_requests.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "cokv/runtime/detail/require.hpp"
#include "cokv/runtime/net.hpp"

namespace cokv::detail {
namespace {

constexpr std::size_t most_pieces = byte_stream::const_buffers::limit + 1;  // and what there is no room for

}  // namespace

void mpi_requests::send(const void* bytes, std::size_t n, int rank, int tag, outcome done) {
  COKV_REQUIRE(n <= std::numeric_limits<int>::max(), "a message is counted by an int");
  MPI_Request r = nullptr;
  const auto& mpi = process_.api();
  if (auto ec = process_.check(mpi.Isend(bytes, static_cast<int>(n), mpi.byte, rank, tag, process_.comm(), &r)))
    return done(ec);
  track(r, std::move(done), false);
}

// Several pieces as one element, which whoever frees it leaves to what uses it.
template <class Buffer>
error_code mpi_requests::describe(std::span<const Buffer> pieces, MPI_Datatype& as) const {
  std::array<int, most_pieces> sizes;
  std::array<MPI_Aint, most_pieces> at;
  COKV_REQUIRE(pieces.size() <= most_pieces, "a list of buffers has a limit");
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    sizes[i] = static_cast<int>(pieces[i].size());
    at[i] = reinterpret_cast<MPI_Aint>(pieces[i].data());
  }
  const auto& mpi = process_.api();
  const auto n = static_cast<int>(pieces.size());
  if (auto ec = process_.check(mpi.Type_create_hindexed(n, sizes.data(), at.data(), mpi.byte, &as))) return ec;
  return process_.check(mpi.Type_commit(&as));
}

void mpi_requests::send(std::span<const asio::const_buffer> pieces, int rank, int tag, outcome done) {
  if (pieces.size() == 1) return send(pieces[0].data(), pieces[0].size(), rank, tag, std::move(done));
  const auto& mpi = process_.api();
  MPI_Datatype parts = nullptr;
  MPI_Request r = nullptr;
  auto ec = describe(pieces, parts);
  if (!ec) ec = process_.check(mpi.Isend(MPI_BOTTOM, 1, parts, rank, tag, process_.comm(), &r));
  if (parts) mpi.Type_free(&parts);
  if (ec) return done(ec);
  track(r, std::move(done), false);
}

error_code mpi_requests::probe(int rank, int tag, arrival& found) {
  int there = 0;
  MPI_Message message = nullptr;
  MPI_Status status;
  const auto& mpi = process_.api();
  if (auto ec = process_.check(mpi.Improbe(rank, tag, process_.comm(), &there, &message, &status))) return ec;
  if (!there) return {};
  found = {message, 0, status.MPI_SOURCE};
  return process_.check(mpi.Get_count(&status, mpi.byte, &found.bytes));
}

void mpi_requests::receive(arrival what, const std::vector<asio::mutable_buffer>& into, outcome done) {
  MPI_Request r = nullptr;
  const auto& mpi = process_.api();
  error_code ec;
  if (into.size() < 2) {
    const auto to = into.empty() ? asio::mutable_buffer() : into.front();
    ec = process_.check(mpi.Imrecv(to.data(), static_cast<int>(to.size()), mpi.byte, &what.message, &r));
  } else {
    MPI_Datatype parts = nullptr;
    ec = describe(std::span(into), parts);
    if (!ec) ec = process_.check(mpi.Imrecv(MPI_BOTTOM, 1, parts, &what.message, &r));
    if (parts) mpi.Type_free(&parts);
  }
  if (ec) return done(ec);
  track(r, std::move(done), true);
}

void mpi_requests::sum(std::span<float> numbers, MPI_Comm over, outcome done) {
  MPI_Request r = nullptr;
  const auto& mpi = process_.api();
  if (auto ec = process_.check(
          mpi.Iallreduce(MPI_IN_PLACE, numbers.data(), static_cast<int>(numbers.size()), mpi.real, mpi.sum, over, &r)))
    return done(ec);
  track(r, std::move(done), false);
}

void mpi_requests::track(MPI_Request r, outcome done, bool writes) {
  int over = 0;
  MPI_Status status;
  const auto& mpi = process_.api();
  const auto ec = process_.check(mpi.Test(&r, &over, &status));
  if (over || ec) return done(ec);
  requests_.push_back(r);
  what_.push_back({std::move(done), writes});
}

std::size_t mpi_requests::poll(error_code& failed) {
  if (requests_.empty()) return 0;
  const auto& mpi = process_.api();
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int n = 0;
  const int status =
      mpi.Testsome(static_cast<int>(requests_.size()), requests_.data(), &n, indices_.data(), statuses_.data());
  if (status != MPI_SUCCESS && status != MPI_ERR_IN_STATUS) {
    failed = process_.check(status);
    return 0;
  }
  if (n == MPI_UNDEFINED || n <= 0) return 0;
  std::vector<std::pair<outcome, error_code>> done;
  for (int i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)]);
    const auto ec =
        status == MPI_SUCCESS ? error_code() : process_.check(statuses_[static_cast<std::size_t>(i)].MPI_ERROR);
    done.emplace_back(std::move(what_[at].done), ec);
    requests_[at] = mpi.no_request;
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == mpi.no_request) continue;
    if (kept != i) {
      requests_[kept] = requests_[i];
      what_[kept] = std::move(what_[i]);
    }
    ++kept;
  }
  requests_.resize(kept);
  what_.resize(kept);
  for (auto& [f, ec] : done) f(ec);  // may send and receive more
  return done.size();
}

bool mpi_requests::writing() const noexcept { return std::ranges::any_of(what_, &request::writes); }

void mpi_requests::bury(mpi_process& in) {
  for (auto& w : what_) in.bury(std::make_shared<outcome>(std::move(w.done)));
  what_.clear();
  requests_.clear();
}

}  // namespace cokv::detail
