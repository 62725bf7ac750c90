#pragma once
// TensorFlow's CPU allocator, redirected: tensors that are reduced are born where the ranks of a
// host see them.
#include <cstddef>

namespace horoacc {

/// A tensor of so many bytes is about to be reduced: those of its size will be again.
void ExpectReduced(size_t bytes);

}  // namespace horoacc
