// A process of this program's own that follows orders from a socket, and ends with whoever made it.
//
//     child other([](int link) { ... });   // forks: before this process has threads; it ends when the function returns
//     ::send(other.link(), ...);
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>

namespace cokv::fit {

class child {
 public:
  // What `run` throws is sent as its what(). Throws config_error where there is no process for it.
  explicit child(const std::function<void(int link)>& run);
  child(const child&) = delete;
  ~child();  // whatever it is at

  int link() const noexcept { return link_; }

 private:
  pid_t process_ = -1;
  int link_ = -1;
};

// All of it or nothing; false: the other end is gone.
bool send_all(int link, const void* bytes, std::size_t size);
bool receive_all(int link, void* bytes, std::size_t size);

}  // namespace cokv::fit
