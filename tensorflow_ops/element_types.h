#pragma once
// TensorFlow's types and the core's.
#include <cstdint>

#include "tensorflow/core/framework/types.pb.h"

/// The types that can be reduced; the core knows them all.
#define HOROACC_REDUCED_TYPES                                                                 \
  "{bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64, complex64, " \
  "complex128}"

/// The types that can be moved, some as other types of the same width.
#define HOROACC_MOVED_TYPES                                                              \
  "{bool, uint8, int8, uint16, int16, uint32, int32, uint64, int64, float16, bfloat16, " \
  "float32, float64, complex64, complex128}"

namespace horoacc {

/// The core's number of a type with this width; -1 if the core cannot move it.
[[nodiscard]] int32_t NumberOf(tensorflow::DataType type);

}  // namespace horoacc
