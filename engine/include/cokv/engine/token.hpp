// The number of a token in a model's vocabulary, as the tokenizer, the scheduler, the sampler and the keys of KV blocks
// share it.
//
//     std::vector<cokv::token_id> prompt = tokenizer.encode("And it came to pass");
#pragma once

#include <cstdint>

namespace cokv {

using token_id = std::int32_t;  // signed, as the keys of KV blocks take it; never negative

}  // namespace cokv
