// Has a process that closed its end of a socket ended, too? Of one that was killed the system closes one descriptor after the
// other, and a GPU's after a socket: what it had enqueued there runs until then.
//
//     co_await async_process_end(ex, pid);    // it lives, and closed its end by itself, or nothing of it is left
//
// Linux tells by /proc/PID/stat (proc(5)): a process on its way out has PF_EXITING among its flags; it is a zombie without other
// threads when all its descriptors have been released.
#pragma once

#include <string_view>

#include "cokv/runtime/asio.hpp"

namespace cokv::detail {

enum class process_state { lives, ends, over };

// Of the text of /proc/PID/stat; what can't be read tells of no end.
process_state state_in(std::string_view stat);
// over: there is no such process.
process_state state_of(int pid);

// 0: one of another namespace, of which nothing is seen. It is given the time that the system needs for a process with a GPU.
awaitable<void> async_process_end(asio::any_io_executor ex, int pid);

}  // namespace cokv::detail
