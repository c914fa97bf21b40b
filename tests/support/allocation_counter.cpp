#include "support/allocation_counter.hpp"

#include <atomic>
#include <cerrno>

#if defined(__has_feature)
#define COKV_HAS(feature) __has_feature(feature)
#else
#define COKV_HAS(feature) 0
#endif
#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || \
    COKV_HAS(address_sanitizer) || COKV_HAS(thread_sanitizer)
#define COKV_COUNTS_ALLOCATIONS 0
#else
#define COKV_COUNTS_ALLOCATIONS 1
#endif

namespace {
std::atomic<std::size_t> allocations{0};
}

bool cokv::test::allocation_counter::available() noexcept { return COKV_COUNTS_ALLOCATIONS; }
std::size_t cokv::test::allocation_counter::total() noexcept { return allocations.load(); }

#if COKV_COUNTS_ALLOCATIONS
// In place of the C library's, which keep their own names too.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t n) {
  ++allocations;
  return __libc_malloc(n);
}
void* calloc(std::size_t n, std::size_t size) {
  ++allocations;
  return __libc_calloc(n, size);
}
void* realloc(void* p, std::size_t n) {
  ++allocations;
  return __libc_realloc(p, n);
}
void* aligned_alloc(std::size_t align, std::size_t n) {
  ++allocations;
  return __libc_memalign(align, n);
}
void* memalign(std::size_t align, std::size_t n) {
  ++allocations;
  return __libc_memalign(align, n);
}
int posix_memalign(void** p, std::size_t align, std::size_t n) {
  ++allocations;
  *p = __libc_memalign(align, n);
  return *p ? 0 : ENOMEM;
}
}
#endif
