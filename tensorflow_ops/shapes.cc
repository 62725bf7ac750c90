#include "shapes.h"

namespace horoacc {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status SameShapes(InferenceContext* context) {
  for (int t = 0; t < context->num_outputs(); ++t) context->set_output(t, context->input(t));
  return absl::OkStatus();
}

absl::Status OtherRows(InferenceContext* context) {
  for (int t = 0; t < context->num_outputs(); ++t) {
    ShapeHandle input;
    ShapeHandle output;
    absl::Status status = context->WithRankAtLeast(context->input(t), 1, &input);
    if (status.ok()) status = context->ReplaceDim(input, 0, context->UnknownDim(), &output);
    if (!status.ok()) return status;
    context->set_output(t, output);
  }
  return absl::OkStatus();
}

}  // namespace horoacc
