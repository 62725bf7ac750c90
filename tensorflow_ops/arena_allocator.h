#pragma once
// TensorFlow's CPU allocator, redirected: tensors that are reduced are allocated in the arena,
// which the ranks of a host share.
#include <cstddef>

namespace horoacc {

/// Notes the size of a tensor that is reduced: tensors of this size will be again.
void ExpectReduced(size_t bytes);

}  // namespace horoacc
