// A pager from the inside: two landing buffers and what is in them.
#pragma once

#include "cokv/kvstream/pager.hpp"
#include "cokv/runtime/detail/background.hpp"
#include "detail/changes.hpp"

namespace cokv::detail {

struct pager_state : std::enable_shared_from_this<pager_state> {
  enum class holds : std::uint8_t {
    nothing,
    coming,   // a layer on its way
    there,    // a layer, whole
    given,    // the same, being computed with
    leaving,  // its changed blocks on their way back
    stuck,    // those did not get there
    failed,   // a layer that did not come
  };
  struct landing {
    buffer memory;
    holds what = holds::nothing;
    std::size_t place = 0;                           // of the layer, among those lent
    std::vector<std::uint32_t> blocks;               // of the layer, those that came
    std::vector<std::uint32_t> changed, fresh;       // to be written back: in any case, and if the step succeeds
    std::vector<std::shared_ptr<const void>> keeps;  // until those are written back
    error_code why;
    bool told = false;  // of why
  };

  pager_state(geometry g, source f, sink t, std::array<buffer, 2> l, pager_options o);

  std::size_t place_of(std::uint32_t layer) const;
  std::uint64_t offset(std::size_t place) const;
  std::uint64_t segment(std::size_t place) const { return shape.segment_bytes(options.lent[place]); }
  landing* holder(std::size_t place);
  landing* of(holds what);

  // Begins to fetch into the landing, or to write it back.
  void bring(landing& to, std::size_t place);
  void bring_more(landing& to, std::vector<std::uint32_t> missing);
  void send_back(landing& from, event computed);
  // The next lent layer comes ahead, if there is room for it.
  void look_ahead();

  geometry shape;
  source from;
  sink to;
  pager_options options;
  std::array<landing, 2> landings;
  std::vector<std::uint32_t> blocks;
  std::size_t last = 0;  // place of the layer that was brought last
  bool begun = false;
  std::uint64_t bytes_in = 0, bytes_out = 0;
  changes changed;
  background tasks;
};

// Of what came meanwhile or before nothing is used: it may be what was there, or what is there, or some of both.
awaitable<error_code> write(std::shared_ptr<pager_state> s, std::size_t place, buffer from,
                            std::vector<std::uint32_t> blocks);

// All ascending.
std::vector<std::uint32_t> without(const std::vector<std::uint32_t>& all, const std::vector<std::uint32_t>& those);
std::vector<std::uint32_t> joined(const std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b);

}  // namespace cokv::detail
