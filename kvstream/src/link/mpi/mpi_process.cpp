#include "link/mpi/mpi_process.hpp"

#include <cstdlib>
#include <mutex>

#include "cokv/runtime/error.hpp"

namespace cokv::detail {
namespace {

std::mutex guard;  // contexts of several threads may ask
std::unique_ptr<mpi_process> the_process;
bool taken = false;

class mpi_errors final : public boost::system::error_category {
 public:
  const char* name() const noexcept override { return "mpi"; }
  std::string message(int value) const override {
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int length = 0;
    if (the_process) the_process->api().Error_string(value, text, &length);
    return text;
  }
};

}  // namespace

const boost::system::error_category& mpi_category() noexcept {
  static const mpi_errors instance;
  return instance;
}

error_code mpi_process::check(int status) const {
  return status == MPI_SUCCESS ? error_code() : error_code(status, mpi_category());
}

result<mpi_process*> mpi_process::acquire() {
  const std::lock_guard lock(guard);
  if (taken) return errc::in_use;
  if (!the_process) {
    auto api = mpi_api::load();
    if (!api) return api.error();
    std::unique_ptr<mpi_process> made(new mpi_process(*api));
    if (auto ec = made->start()) return ec;
    the_process = std::move(made);
  }
  int over = 0;
  the_process->api_.Finalized(&over);
  if (over) return errc::closed;
  taken = true;
  return the_process.get();
}

void mpi_process::release() {
  const std::lock_guard lock(guard);
  taken = false;
}

error_code mpi_process::start() {
  int initialized = 0, over = 0, level = MPI_THREAD_SINGLE, main = 0;
  api_.Finalized(&over);
  if (over) return errc::closed;
  api_.Initialized(&initialized);
  if (!initialized) {
    if (auto ec = check(api_.Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level))) return ec;
    static const auto finalize = api_.Finalize;
    static const auto finalized = api_.Finalized;
    std::atexit([] {
      int done = 0;
      finalized(&done);
      if (!done) finalize();
    });
  } else if (auto ec = check(api_.Query_thread(&level))) {
    return ec;
  }
  if (auto ec = check(api_.Is_thread_main(&main))) return ec;
  if (level < MPI_THREAD_FUNNELED || (level < MPI_THREAD_SERIALIZED && !main)) return errc::unsupported;
  // Without waiting: the other ranks may ask later.
  if (auto ec = check(api_.Comm_size(api_.world, &size_))) return ec;
  if (auto ec = check(api_.Comm_rank(api_.world, &rank_))) return ec;
  return check(api_.Comm_idup(api_.world, &comm_, &duplicating_));
}

error_code mpi_process::get_ready() {
  int done = 0;
  if (auto ec = check(api_.Test(&duplicating_, &done, MPI_STATUS_IGNORE))) return ec;
  if (!done) return {};
  if (auto ec = check(api_.Comm_set_errhandler(comm_, api_.errors_return))) return ec;
  void* most = nullptr;
  int found = 0;
  if (auto ec = check(api_.Comm_get_attr(comm_, MPI_TAG_UB, &most, &found))) return ec;
  most_tags_ = found ? *static_cast<int*>(most) : 32767;  // what the standard grants
  ready_ = true;
  return {};
}

result<MPI_Comm> mpi_process::split(int colour) {
  while (!ready_)
    if (auto ec = get_ready()) return ec;
  MPI_Comm out = nullptr;
  if (auto ec = check(api_.Comm_split(comm_, colour, rank_, &out))) return ec;
  if (auto ec = check(api_.Comm_set_errhandler(out, api_.errors_return))) return ec;
  return out;
}

int mpi_process::new_tag() {
  last_tag_ = last_tag_ == most_tags_ ? 1 : last_tag_ + 1;
  return last_tag_;
}

}  // namespace cokv::detail
