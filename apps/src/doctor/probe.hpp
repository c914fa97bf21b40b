// Looks at the machine this process runs on. Loads shared libraries to see whether they are there, makes one io_uring
// and closes it; changes nothing.
//
//     doctor::facts here = doctor::probe();
#pragma once

#include "doctor/report.hpp"

namespace cokv::doctor {

facts probe();

}  // namespace cokv::doctor
