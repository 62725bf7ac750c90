#pragma once
// The steps of a rank's stream for one window of mode S, between packing and unpacking: plain data,
// so that the run and the model of its protocol (tests/cpp/model/stream_model.h) share it.
#include <array>
#include <cstdint>

namespace horoacc::cuda {

enum class StreamStep : uint8_t {
  kTellPacked,
  kAwaitPacked,
  kReduceShard,
  kTellReduced,
  kAwaitReduced
};

/// A rank tells before it waits, so the ranks' streams cannot wait for each other in a circle; and
/// no rank packs again before all have read and written.
inline constexpr std::array kStreamSteps = {StreamStep::kTellPacked, StreamStep::kAwaitPacked,
                                            StreamStep::kReduceShard, StreamStep::kTellReduced,
                                            StreamStep::kAwaitReduced};

}  // namespace horoacc::cuda
