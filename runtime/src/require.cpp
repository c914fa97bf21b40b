#include "cokv/runtime/detail/require.hpp"

#include <cstdio>
#include <cstdlib>

namespace cokv::detail {

void broken_rule(const char* rule, const std::source_location& where) noexcept {
  std::fprintf(stderr, "%s:%u: %s: broken rule: %s\n", where.file_name(), static_cast<unsigned>(where.line()),
               where.function_name(), rule);
  std::abort();
}

}  // namespace cokv::detail
