#include "support/fake_nccl.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "support/fake_cuda_model.hpp"

namespace cokv::test::fake_nccl {
namespace {

using fake_cuda::model;

// One ncclSend or ncclRecv.
struct part {
  ncclComm* by;
  std::byte* p;
  std::size_t n;
  bool active = false, done = false;
};

// What one rank sends the other, in order: the i-th send meets the i-th receive.
struct way {
  std::vector<std::shared_ptr<part>> sends, receives;
};

// What all ranks add up, at the same place in their order.
struct total {
  struct summand {
    ncclComm* by = nullptr;  // none: not asked for yet
    std::byte* p = nullptr;
    std::size_t n = 0;                // floats
    std::vector<float> numbers = {};  // as they were when its kernel began
    bool active = false;
  };
  std::vector<summand> of;  // by rank
  bool done = false;
};

struct clique {
  std::vector<ncclComm*> ranks;
  std::array<way, 2> from;  // of two
  std::vector<std::shared_ptr<total>> totals;
};

struct deferred {
  CUstream_st* stream;
  std::shared_ptr<fake_cuda::kernel> kernel;
  std::uint64_t accepted;
};

}  // namespace
}  // namespace cokv::test::fake_nccl

struct ncclComm {
  std::shared_ptr<cokv::test::fake_nccl::clique> in;
  int rank, device;
  int polls = 0;  // that what it does is in progress for
  bool made = false, connecting = false, connected = false, finalizing = false, finalized = false;
  bool alive = true, aborted = false;
  ncclResult_t error = ncclSuccess;
  std::optional<cokv::test::fake_nccl::deferred> group;
  int running = 0;         // kernels
  std::size_t totals = 0;  // it has a part in

  // Of every other rank; false where it is not there.
  template <class F>
  bool others(F f) const {
    for (auto* r : in->ranks)
      if (r != this && !(r && f(*r))) return false;
    return true;
  }
  bool in_progress() const { return error == ncclSuccess && (!made || group || (finalizing && !finalized)); }
};

namespace cokv::test::fake_nccl {
namespace {

options how;
std::map<std::string, std::shared_ptr<clique>> cliques;
std::vector<std::unique_ptr<ncclComm>> comms;  // dead ones too: using one has to be seen
std::size_t aborted = 0;
std::uint64_t sent = 0, ids = 0;

class exchange final : public fake_cuda::kernel {
 public:
  struct move {
    std::shared_ptr<part> mine;
    bool sends;
    std::size_t index;
  };
  exchange(ncclComm* by, std::vector<move> moves) : by_(by), moves_(std::move(moves)) { ++by_->running; }

  bool ready() const override {
    if (done() || !begun_) return true;
    for (auto& m : moves_)
      if (!m.mine->done && other(m)) return true;
    return false;
  }
  void step() override {
    if (!std::exchange(begun_, true)) {
      for (auto& m : moves_) {
        m.mine->active = true;
        if (!m.sends && how.moves) std::memset(m.mine->p, 0xDB, m.mine->n);
      }
      return;
    }
    for (auto& m : moves_) {
      auto* to = other(m);
      if (m.mine->done || !to) continue;
      if (to->n != m.mine->n) {
        by_->error = to->by->error = ncclInternalError;
        return;
      }
      auto &source = m.sends ? *m.mine : *to, &target = m.sends ? *to : *m.mine;
      if (how.moves) std::memcpy(target.p, source.p, source.n);
      source.done = target.done = true;
    }
    model::get().changed();
  }
  bool done() const override {
    if (by_->aborted) return true;
    for (auto& m : moves_)
      if (!m.mine->done) return false;
    return true;
  }
  bool uses(const std::byte* p, std::size_t n) const override {
    if (done()) return false;
    for (auto& m : moves_)
      if (m.mine->p < p + n && p < m.mine->p + m.mine->n) return true;
    return false;
  }
  ~exchange() override { --by_->running; }

 private:
  // The peer's part, if its kernel is at work and both communicators are well.
  part* other(const move& m) const {
    const auto& w = by_->in->from[m.sends ? by_->rank : 1 - by_->rank];
    const auto& theirs = m.sends ? w.receives : w.sends;
    if (m.index >= theirs.size()) return nullptr;
    auto* p = theirs[m.index].get();
    const bool well = p->active && !p->done && !p->by->aborted && !p->by->error && !by_->error;
    return well ? p : nullptr;
  }

  ncclComm* by_;
  const std::vector<move> moves_;
  bool begun_ = false;
};

class addition final : public fake_cuda::kernel {
 public:
  addition(ncclComm* by, std::shared_ptr<total> all, total::summand& own) : by_(by), all_(std::move(all)), own_(own) {
    ++by_->running;
  }

  bool ready() const override { return done() || !own_.active || everybody(); }
  void step() override {
    if (!std::exchange(own_.active, true)) {
      const auto* numbers = reinterpret_cast<const float*>(own_.p);
      own_.numbers.assign(numbers, numbers + own_.n);
      std::memset(own_.p, 0xDB, own_.n * sizeof(float));
    } else if (everybody()) {
      add();
    }
    model::get().changed();
  }
  bool done() const override { return all_->done || by_->aborted; }
  bool uses(const std::byte* p, std::size_t n) const override {
    return !done() && own_.p < p + n && p < own_.p + own_.n * sizeof(float);
  }
  ~addition() override { --by_->running; }

 private:
  bool everybody() const {
    return std::ranges::all_of(all_->of, [](auto& s) { return s.active && !s.by->aborted && !s.by->error; });
  }
  void add() {
    auto& of = all_->of;
    auto sum = of.front().numbers;
    for (std::size_t r = 1; r < of.size(); ++r) {
      if (of[r].n != sum.size()) {
        for (auto& s : of) s.by->error = ncclInternalError;
        return;
      }
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += of[r].numbers[i];
    }
    for (auto& s : of) std::memcpy(s.p, sum.data(), sum.size() * sizeof(float));
    all_->done = true;
  }

  ncclComm* by_;
  const std::shared_ptr<total> all_;
  total::summand& own_;
};

struct asked {
  ncclComm* comm;
  CUstream_st* stream;
  bool sends;
  std::byte* p;
  std::size_t n;
};
thread_local int depth = 0;
thread_local std::vector<asked> group;

ncclResult_t failed(model& m, cudaError_t e) {
  return m.lost != cudaSuccess || static_cast<int>(e) > ncclRemoteError ? ncclUnhandledCudaError
                                                                        : static_cast<ncclResult_t>(e);
}

#define CALL(name)        \
  auto& m = model::get(); \
  auto lock = m.lock();   \
  if (auto planned = m.enter("nccl" #name); planned != cudaSuccess) return failed(m, planned)

bool usable(model& m, ncclComm* c, const char* call, bool also_in_progress = false) {
  if (!c || !c->alive) return m.violate(std::string(call) + " with a communicator that is gone"), false;
  if (c->in_progress() && !also_in_progress)
    return m.violate(std::string(call) + " while something is in progress"), false;
  return true;
}

void put(model& m, CUstream_st* s, std::shared_ptr<fake_cuda::kernel> kernel) {
  fake_cuda::operation op;
  op.kernel = std::move(kernel);
  m.enqueue(*s, std::move(op));
}

// One look at what is in progress.
void progress(model& m, ncclComm& c) {
  if (c.error || !c.in_progress()) return;
  if (!c.made) {
    if (!c.others([](auto& o) { return !o.aborted; })) return;
    std::set<int> devices;
    for (auto* r : c.in->ranks) devices.insert(r->device);
    if (devices.size() < c.in->ranks.size()) {  // duplicate GPU
      for (auto* r : c.in->ranks) r->error = ncclInvalidUsage;
      return;
    }
  } else if (c.group) {
    if (!c.connected && !c.others([](auto& o) { return o.connecting; })) return;
    c.connected = true;
  } else if (c.running || !c.others([](auto& o) { return o.finalizing; })) {
    return;
  }
  if (c.polls-- > 0) return;
  if (!c.made) {
    c.made = true;
  } else if (c.group) {
    auto g = std::move(*c.group);
    c.group.reset();
    if (!m.streams.contains(g.stream)) return m.violate("a stream went while NCCL was putting a group on it");
    if (g.stream->accepted != g.accepted) m.violate("other work on a stream that NCCL was putting a group on");
    put(m, g.stream, std::move(g.kernel));
  } else {
    c.finalized = true;
  }
}

int some_polls(model& m) { return static_cast<int>(m.below(static_cast<std::uint64_t>(how.max_polls) + 1)); }

ncclResult_t get_version(int* v) { return *v = NCCL_VERSION_CODE, ncclSuccess; }
const char* get_error_string(ncclResult_t e) {
  return e == ncclRemoteError ? "the peer is gone" : e == ncclSystemError ? "the system failed" : "some error";
}
ncclResult_t get_unique_id(ncclUniqueId* id) {
  CALL(GetUniqueId);
  std::memset(id, 0, sizeof *id);
  ++ids;
  std::memcpy(id->internal, &ids, sizeof ids);
  return ncclSuccess;
}

ncclResult_t comm_init(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  *comm = nullptr;
  CALL(CommInitRankConfig);
  if (config->blocking != 0) m.violate("ncclCommInitRankConfig that blocks");
  auto& in = cliques[std::string(id.internal, sizeof id.internal)];
  if (!in) in = std::make_shared<clique>();
  if (in->ranks.empty() && ranks > 0) in->ranks.resize(static_cast<std::size_t>(ranks));
  const auto at = static_cast<std::size_t>(rank);
  if (in->ranks.size() != static_cast<std::size_t>(ranks) || rank < 0 || rank >= ranks || in->ranks[at])
    return ncclInvalidArgument;
  auto& made = comms.emplace_back(new ncclComm{in, rank, 0});
  (void)cudaGetDevice(&made->device);
  made->polls = some_polls(m);
  in->ranks[at] = *comm = made.get();
  return ncclInProgress;
}

ncclResult_t get_async_error(ncclComm_t c, ncclResult_t* state) {
  CALL(CommGetAsyncError);
  if (!usable(m, c, "ncclCommGetAsyncError", true)) return ncclInvalidArgument;
  progress(m, *c);
  *state = c->error ? c->error : c->in_progress() ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t group_start() {
  CALL(GroupStart);
  ++depth;
  return ncclSuccess;
}

// At once, where the ranks are connected and NCCL has a good day.
ncclResult_t launch(model& m, ncclComm& c, CUstream_st* s, std::shared_ptr<fake_cuda::kernel> kernel) {
  c.polls = some_polls(m);
  if (std::exchange(c.connecting, true) && c.polls == 0) return put(m, s, std::move(kernel)), ncclSuccess;
  c.group = deferred{s, std::move(kernel), s->accepted};
  return ncclInProgress;
}

ncclResult_t put_group(model& m) {
  auto all = std::move(group);
  group.clear();
  if (all.empty()) return ncclSuccess;
  auto* c = all.front().comm;
  auto* s = all.front().stream;
  std::vector<exchange::move> moves;
  for (auto& a : all) {
    if (a.comm != c || a.stream != s) m.violate("a group of several communicators or streams");
    auto& w = c->in->from[a.sends ? c->rank : 1 - c->rank];
    auto& mine = a.sends ? w.sends : w.receives;
    mine.push_back(std::make_shared<part>(part{c, a.p, a.n}));
    moves.push_back({mine.back(), a.sends, mine.size() - 1});
  }
  return launch(m, *c, s, std::make_shared<exchange>(c, std::move(moves)));
}

ncclResult_t group_end() {
  auto& m = model::get();
  auto lock = m.lock();
  if (depth == 0) return m.violate("ncclGroupEnd without a beginning"), ncclInvalidUsage;
  if (--depth > 0) return ncclSuccess;
  if (auto planned = m.enter("ncclGroupEnd"); planned != cudaSuccess) return group.clear(), failed(m, planned);
  return put_group(m);
}

ncclResult_t move(const char* call, bool sends, void* p, std::size_t n, ncclDataType_t type, int peer, ncclComm_t c,
                  cudaStream_t s) {
  auto& m = model::get();
  auto lock = m.lock();
  if (auto planned = m.enter(call); planned != cudaSuccess) return failed(m, planned);
  if (!usable(m, c, call) || !m.valid(s, call)) return ncclInvalidArgument;
  if (c->error) return c->error;
  if (type != ncclInt8 || c->in->ranks.size() != 2 || peer != 1 - c->rank) return ncclInvalidArgument;
  if (s->device != c->device) m.violate(std::string(call) + " on another device's stream");
  if (n == 0) m.violate(std::string(call) + " of nothing");
  if (sends) sent += n;
  group.push_back({c, s, sends, static_cast<std::byte*>(p), n});
  return depth ? ncclSuccess : put_group(m);
}
ncclResult_t send(const void* p, std::size_t n, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t s) {
  return move("ncclSend", true, const_cast<void*>(p), n, type, peer, c, s);
}
ncclResult_t receive(void* p, std::size_t n, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t s) {
  return move("ncclRecv", false, p, n, type, peer, c, s);
}

ncclResult_t all_reduce(const void* from, void* to, std::size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t c,
                        cudaStream_t s) {
  CALL(AllReduce);
  if (!usable(m, c, "ncclAllReduce") || !m.valid(s, "ncclAllReduce")) return ncclInvalidArgument;
  if (c->error) return c->error;
  if (type != ncclFloat32 || op != ncclSum || from != to) return ncclInvalidArgument;
  if (depth > 0) m.violate("ncclAllReduce in a group");
  if (s->device != c->device) m.violate("ncclAllReduce on another device's stream");
  if (!m.has(to, n * sizeof(float), c->device)) m.violate("ncclAllReduce of memory that is not the device's");
  if (n == 0) m.violate("ncclAllReduce of nothing");
  auto& all = c->in->totals;
  const auto at = c->totals++;
  if (at == all.size()) {
    all.push_back(std::make_shared<total>());
    all[at]->of.resize(c->in->ranks.size());
  }
  auto& own = all[at]->of[static_cast<std::size_t>(c->rank)];
  own = {c, static_cast<std::byte*>(to), n};
  return launch(m, *c, s, std::make_shared<addition>(c, all[at], own));
}

ncclResult_t comm_abort(ncclComm_t c) {
  auto& m = model::get();
  auto lock = m.lock();
  const auto planned = m.enter("ncclCommAbort");  // it aborts whatever it says
  if (!usable(m, c, "ncclCommAbort", true)) return ncclInvalidArgument;
  c->alive = false;
  c->aborted = true;
  c->group.reset();
  ++aborted;
  if (how.peer_notices && c->made)
    for (auto* r : c->in->ranks)
      if (r && r->alive && !r->error) r->error = ncclRemoteError;
  m.changed();
  return planned == cudaSuccess ? ncclSuccess : failed(m, planned);
}

ncclResult_t comm_finalize(ncclComm_t c) {
  CALL(CommFinalize);
  if (!usable(m, c, "ncclCommFinalize")) return ncclInvalidArgument;
  c->finalizing = true;
  c->polls = some_polls(m);
  return ncclInProgress;
}

ncclResult_t comm_destroy(ncclComm_t c) {
  auto& m = model::get();
  auto lock = m.lock();
  const auto planned = m.enter("ncclCommDestroy");
  if (!usable(m, c, "ncclCommDestroy")) return ncclInvalidArgument;
  if (!c->finalized) m.violate("ncclCommDestroy of what was not finalized");
  c->alive = false;
  return planned == cudaSuccess ? ncclSuccess : failed(m, planned);
}

}  // namespace

detail::nccl_api table() {
  return {.AllReduce = all_reduce,
          .CommAbort = comm_abort,
          .CommDestroy = comm_destroy,
          .CommFinalize = comm_finalize,
          .CommGetAsyncError = get_async_error,
          .CommInitRankConfig = comm_init,
          .GetErrorString = get_error_string,
          .GetUniqueId = get_unique_id,
          .GetVersion = get_version,
          .GroupEnd = group_end,
          .GroupStart = group_start,
          .Recv = receive,
          .Send = send};
}

void reset(options o) {
  auto lock = model::get().lock();
  how = o;
  for (auto& c : comms) c->group.reset();
  comms.clear();
  cliques.clear();
  aborted = 0;
  sent = 0;
}

void raise(int device, ncclResult_t error) {
  auto lock = model::get().lock();
  for (auto& c : comms)
    if (c->alive && c->device == device) c->error = error;
}

std::size_t live_communicators() {
  auto lock = model::get().lock();
  std::size_t n = 0;
  for (auto& c : comms) n += c->alive;
  return n;
}
std::size_t aborted_communicators() {
  auto lock = model::get().lock();
  return aborted;
}
std::uint64_t bytes_sent() {
  auto lock = model::get().lock();
  return sent;
}

}  // namespace cokv::test::fake_nccl
