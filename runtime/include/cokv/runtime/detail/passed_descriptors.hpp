// Descriptors that other processes passed to this one. To close one may take for ever (a socket that lingers over unsent
// bytes, a file of a file system that does not answer), so it is done on a thread that nobody waits for. Until it is done
// they take from what this process may open: they are counted.
#pragma once

#include <cstddef>
#include <memory>

namespace cokv::detail {

// Takes it over. Its last owner's going, on any thread, has it closed, and never waits.
std::shared_ptr<const int> passed_descriptor(int fd);

// Those that are not closed yet, of this process.
std::size_t passed_descriptors() noexcept;

// They are a quarter of what it may open: who can refuse more of them does.
bool too_many_passed() noexcept;

}  // namespace cokv::detail
