#pragma once
// The tensors of a scheduled collective, and how its chunks lie in the caller's memory.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "schedule/schedule.h"

namespace horoacc {

/// Tensors, chunks and slices begin at multiples of this many bytes.
inline constexpr uint64_t kGrain = 64;
[[nodiscard]] constexpr uint64_t RoundUpToGrain(uint64_t bytes) {
  return (bytes + kGrain - 1) / kGrain * kGrain;
}

/// One tensor, as this rank has it.
struct PayloadTensor {
  DType type = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;  ///< of reductions
  Scale scale{};
  uint64_t count = 0;  ///< elements, the same on all ranks; ignored where there is a table of sizes
  const void* input = nullptr;
  void* output = nullptr;  ///< may be the input, except for all-to-all
};

/// Ranks are numbered as in the process set here, and called members; a schedule numbers them host
/// by host, and these numbers are called places.
struct Payload {
  /// The vector of an allreduce, broadcast or reduce is all of them, one after the other. The other
  /// goals have one.
  std::vector<PayloadTensor> tensors;
  /// Elements, by member: of the shards of a reduce-scatter and an all-gather; of an all-to-all the
  /// table [from · members + to]. Shards lie one after the other in the order of the members.
  std::vector<uint64_t> sizes{};
  /// Sums that are not finished travel, and are kept, in the accumulator's type: float32 for 16-bit
  /// floats. Then they are rounded once, as inside a host. Otherwise they have the tensor's type,
  /// are rounded by every rank that adds to them, and take half the bytes. Integers that are
  /// scaled, or averaged, always travel as int64: a result that fits may have partial sums that do
  /// not.
  bool wide = false;
  /// The outputs are the caller's own windows, where unfinished sums may lie. Otherwise they are a
  /// user's, and get nothing but results: the user keeps what they held if the collective fails.
  bool sums_in_outputs = false;
};

/// The type of unfinished sums.
[[nodiscard]] DType PartialTypeOf(const PayloadTensor& tensor, bool wide);

/// Where unfinished sums have the tensor's type, an average of float16 divides before the first
/// sum: the sum may overflow although the average does not.
[[nodiscard]] inline Scale DividedFirst(DType type, const Scale& scale) {
  return type == DType::kFloat16 ? Scale{scale.pre / scale.divisor, scale.post, 1.0} : scale;
}

/// How the elements of a message lie in memory: as the tensors have them, or unfinished sums.
enum class Form : uint8_t { kElements, kPartial };

/// `count` elements of a tensor.
struct Extent {
  uint32_t tensor = 0;
  uint64_t count = 0;
  std::byte* data = nullptr;
};

/// Cuts the vector into windows, the windows into chunks and messages into slices, so that all
/// ranks cut alike; and says where the parts lie. Cuts are at multiples of 64 bytes of each tensor.
class ChunkMap {
 public:
  /// `members`: by place. kInvalid if the payload does not fit the schedule's goal.
  static Result<ChunkMap> Make(const schedule::Schedule& schedule, uint32_t place,
                               const std::vector<uint32_t>& members, Payload payload,
                               uint64_t window_bytes);

  [[nodiscard]] uint64_t windows() const { return windows_; }
  /// Of a vector whose tensors begin at multiples of 64.
  [[nodiscard]] uint64_t EndOfWindow(uint64_t window) const {
    return std::min((window + 1) * window_bytes_, starts_.back());
  }
  [[nodiscard]] const PayloadTensor& tensor(uint32_t index) const {
    return payload_.tensors[index];
  }
  [[nodiscard]] std::span<const PayloadTensor> tensors() const { return payload_.tensors; }
  /// Of their unfinished sums.
  [[nodiscard]] std::span<const DType> partial_types() const { return partial_types_; }
  [[nodiscard]] size_t element_bytes(uint32_t tensor, Form form) const {
    return SizeOf(form == Form::kPartial ? partial_types_[tensor] : payload_.tensors[tensor].type);
  }
  [[nodiscard]] bool reduces() const { return reduces_; }
  /// Unfinished sums cannot lie in the outputs.
  [[nodiscard]] bool keeps_partials_apart() const {
    return reduces_ && (widest_ > 1 || !payload_.sums_in_outputs);
  }
  /// Bytes that a chunk of scratch takes at most, in any form.
  [[nodiscard]] uint64_t chunk_bytes() const { return chunk_bytes_ * widest_; }
  /// Bytes of an unfinished sum for each byte of its tensor, at most; 1 without reductions.
  [[nodiscard]] uint64_t widest() const { return widest_; }

  struct Where {
    schedule::Buffer buffer = schedule::Buffer::kInput;
    uint32_t chunk = 0;
    uint64_t window = 0;
    Form form = Form::kElements;
    std::byte* apart = nullptr;  ///< the memory of scratch, or of sums that are kept apart
  };
  /// Appends where a chunk lies; adjacent parts stay apart, so that all ranks list the same parts.
  void Append(const Where& where, std::vector<Extent>& extents) const;

  [[nodiscard]] uint64_t BytesOf(const std::vector<Extent>& extents, Form form) const;
  /// Length of a list on the ruler by which it is cut into slices: every part begins at a multiple
  /// of 64, so no cut is inside an element.
  [[nodiscard]] uint64_t LengthOf(const std::vector<Extent>& extents) const;
  /// The part in [from, to) of that ruler.
  void Cut(const std::vector<Extent>& all, uint64_t from, uint64_t to, Form form,
           std::vector<Extent>& part) const;

 private:
  ChunkMap(const schedule::Schedule& schedule, uint32_t place, std::vector<uint32_t> members,
           Payload payload);
  Status CutVector(uint64_t window_bytes);
  Status CutShards(uint64_t window_bytes);
  void AppendOfVector(const Where& where, uint32_t chunk, std::vector<Extent>& extents) const;
  void AppendOfShard(const Where& where, std::vector<Extent>& extents) const;
  [[nodiscard]] uint64_t ShardSize(uint32_t from, uint32_t to) const;

  const schedule::Schedule* schedule_;
  schedule::Facts facts_;
  uint32_t place_;
  std::vector<uint32_t> members_;  ///< by place
  Payload payload_;
  std::vector<DType> partial_types_;
  bool reduces_ = false;
  bool shards_ = false;  ///< chunks have sizes of their own
  uint64_t widest_ = 1;  ///< bytes of an unfinished sum for each byte of its tensor, at most
  uint64_t windows_ = 0;
  uint64_t window_bytes_ = 0;       ///< of the vector; of each shard
  uint64_t chunk_bytes_ = 0;        ///< of a full window
  std::vector<uint64_t> starts_;    ///< of the tensors in the vector, and its length
  std::vector<uint64_t> in_, out_;  ///< by place: first byte of a shard in input and output
};

}  // namespace horoacc
