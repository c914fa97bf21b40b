#include "task_pause.hpp"

namespace cokv::detail {

bool task_pause::set_aside() { return false; }
void task_pause::go_on() {}

}  // namespace cokv::detail
