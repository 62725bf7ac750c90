#pragma once
// The stage between hosts of a run that other hosts have begun and that is dropped: this rail gives
// zeros, so that what was sent is taken, and nobody has the results.
#include <memory>
#include <vector>

#include "execute/schedule/composed_allreduce.h"

namespace horoacc {

class DrainedRun final : public Execution, private ChunkPipeline {
 public:
  static Result<std::unique_ptr<DrainedRun>> Make(std::span<const ReducePiece> pieces, Rail rail,
                                                  bool wide, BetweenHosts::Surroundings between);

  bool Advance() override { return !complete() && between_->run().Advance(); }
  [[nodiscard]] bool complete() const override { return between_->run().complete(); }
  [[nodiscard]] bool failed() const override { return between_->run().failed(); }
  [[nodiscard]] Error failure() const override { return between_->run().failure(); }

 private:
  explicit DrainedRun(uint64_t bytes) : bytes_(bytes) {}
  [[nodiscard]] Result<uint64_t> Arrived() override { return bytes_; }
  [[nodiscard]] Status Leave(uint64_t) override { return {}; }

  const uint64_t bytes_;
  std::unique_ptr<BetweenHosts> between_;
};

}  // namespace horoacc
