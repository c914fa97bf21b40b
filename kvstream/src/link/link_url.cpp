#include "link/link_url.hpp"

#include <algorithm>
#include <charconv>

#include "cokv/runtime/error.hpp"
#include "cokv/runtime/result.hpp"
#include "link/mpi/mpi_network.hpp"
#include "link/ucx/ucx_network.hpp"

namespace cokv::detail {
namespace {

result<link_url> parse_rank(std::string_view text) {
  link_url url{.scheme = link_scheme::mpi};
  if (text.empty()) return url;
  const auto* end = text.data() + text.size();
  const auto [rest, ec] = std::from_chars(text.data(), end, url.rank);
  if (ec != std::errc() || rest != end || url.rank < 0) return errc::invalid_argument;
  return url;
}

// Where a link between processes of one machine begins; the path is the whole of what follows.
result<link_url> parse_path(std::string_view text, bool of_devices) {
  const bool odd = std::ranges::any_of(text, [](char c) { return c < ' ' || c > '~'; });
  if (!text.starts_with('/') || odd) return errc::invalid_argument;
  return link_url{.scheme = link_scheme::shm, .at = endpoint::local(text), .of_devices = of_devices};
}

}  // namespace

std::string link_url::to_string() const {
  if (scheme == link_scheme::mpi) return "mpi://" + (rank == any_rank ? std::string() : std::to_string(rank));
  if (scheme == link_scheme::shm) return (of_devices ? "cuda_ipc://" : "shm://") + at.path();
  const auto* name = scheme == link_scheme::ucx ? "ucx://" : scheme == link_scheme::nccl ? "nccl://" : "tcp://";
  return name + at.to_string();
}

result<link_url> parse_link_url(std::string_view text) {
  const auto colon = text.find("://");
  if (colon == text.npos || colon == 0) return errc::invalid_argument;
  const auto scheme = text.substr(0, colon), rest = text.substr(colon + 3);
  if (scheme == "mpi") return parse_rank(rest);
  if (scheme == "shm" || scheme == "cuda_ipc") return parse_path(rest, scheme == "cuda_ipc");
  const auto over = scheme == "ucx" ? link_scheme::ucx : scheme == "nccl" ? link_scheme::nccl : link_scheme::tcp;
  if (scheme != "tcp" && over == link_scheme::tcp) return errc::unsupported;
  auto at = parse_endpoint(rest);
  if (!at) return errc::invalid_argument;
  return link_url{.scheme = over, .at = std::move(*at)};
}

awaitable<result<byte_stream>> connect_stream(link_url to) {
  auto ex = co_await asio::this_coro::executor;
  if (to.scheme == link_scheme::mpi) co_return co_await connect_mpi(to.rank);
  if (to.scheme == link_scheme::ucx) co_return co_await connect_ucx(to.at);
  co_return co_await network::of(ex).async_connect(to.at, as_result);
}

result<listener> listen_streams(const asio::any_io_executor& ex, const link_url& at) {
  if (at.scheme == link_scheme::mpi) {
    if (at.rank != link_url::any_rank) return errc::invalid_argument;  // whoever connects is who comes
    return listen_mpi(ex);
  }
  if (at.scheme == link_scheme::ucx) return listen_ucx(ex, at.at);
  return network::of(ex).listen(at.at);
}

}  // namespace cokv::detail
