// The profile that a GPU's sheet gives, where none is at hand to be measured (`cokv fit --sheet`).
#pragma once

#include "cokv/engine/model_config.hpp"
#include "cokv/runtime/sim_device_spec.hpp"
#include "fit/fit.hpp"
#include "fit/profile.hpp"

namespace cokv::fit {

// A published one, or of a file. Throws config_error naming --sheet.
sim::device_spec sheet_of(const std::string& name);

// By plan::roofline, and its source says of what. A profile has terms of a step's tokens and of the pairs of them, and the sheet the dearer of
// arithmetic and of reading: of prompts' pairs the arithmetic is told, and of answers' what they read, which is what each of them is bound by.
profile profile_of_sheet(const options& o, const model_config& config, const sim::device_spec& gpu);

}  // namespace cokv::fit
