// A library that is found at run time, or isn't, and the functions that are asked of it. It stays loaded: what it
// started, and what was there before, may be in use.
#pragma once

#include <dlfcn.h>

#include <cstdlib>

namespace cokv::detail {

// What the environment variable names, or else `otherwise`.
inline const char* library_name(const char* variable, const char* otherwise) {
  const char* name = std::getenv(variable);
  return name && *name ? name : otherwise;
}

class shared_library {
 public:
  // As dlopen takes them.
  explicit shared_library(const char* name, int mode = RTLD_NOW) : handle_(::dlopen(name, mode)), whole_(handle_) {}

  template <class T>
  void find(const char* symbol, T*& to) {
    to = handle_ ? reinterpret_cast<T*>(::dlsym(handle_, symbol)) : nullptr;
    whole_ = whole_ && to;
  }
  // It is there, and so is all that was asked for.
  bool whole() const noexcept { return whole_; }

 private:
  void* const handle_;
  bool whole_;
};

}  // namespace cokv::detail
