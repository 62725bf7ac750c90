#pragma once
// The steps of a rank's stream for reductions, for one window of mode S: plain data, so that the
// run and the model of its protocol (tests/cpp/model/stream_model.h) share it.
#include <array>
#include <cstdint>

namespace horoacc::cuda {

enum class StreamStep : uint8_t { kAwaitPacked, kReduceShard, kTellReduced, kAwaitReduced };

/// The stream that packs tells so all ranks, its own one, too, and never waits; a host enqueues
/// these steps behind that. So streams cannot wait for each other in a circle. No rank packs into
/// the slot again before all have read and written.
inline constexpr std::array kStreamSteps = {StreamStep::kAwaitPacked, StreamStep::kReduceShard,
                                            StreamStep::kTellReduced, StreamStep::kAwaitReduced};

}  // namespace horoacc::cuda
