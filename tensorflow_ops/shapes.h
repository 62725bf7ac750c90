#pragma once
// What is known of results' shapes before there are any.
#include "tensorflow/core/framework/shape_inference.h"

namespace horoacc {

/// Each output is shaped like its input.
absl::Status SameShapes(tensorflow::shape_inference::InferenceContext* context);
/// Each output is shaped like its input, but for the number of rows.
absl::Status OtherRows(tensorflow::shape_inference::InferenceContext* context);

}  // namespace horoacc
