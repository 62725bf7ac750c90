#pragma once
// Calls of tensors on the fake GPU, for tests of the whole engine: ranks are threads, which share
// it.
#include <cstring>
#include <functional>
#include <memory>
#include <string>

#include "fake_cuda/fake_cuda.h"
#include "support/ranks.h"
#include "support/run_numbers.h"

namespace horoacc::testing {

inline Pairs InMode(const char* mode) { return {{"cuda_plugin", FAKE_CUDA}, {"gpu_mode", mode}}; }

/// Numbers on the GPU. All work with them is put on a stream.
class Numbers {
 public:
  explicit Numbers(size_t count, int device = 0)
      : data_(static_cast<int32_t*>(fake_cuda_allocate(device, count * 4))), count_(count) {}
  ~Numbers() { fake_cuda_free(data_); }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;

  [[nodiscard]] int32_t* data() const { return data_; }
  [[nodiscard]] Dims shape() const { return {static_cast<int64_t>(count_)}; }

  void Fill(void* stream, std::function<int32_t(size_t)> value) const {
    FakeCudaLaunch(stream, [data = Real(), count = count_, value = std::move(value)] {
      for (size_t i = 0; i < count; ++i) data[i] = value(i);
    });
  }
  /// Compares when the stream comes to it, and waits for that.
  void Expect(void* stream, const std::function<int32_t(size_t)>& value) const {
    FakeCudaLaunch(stream, [data = Real(), count = count_, value] {
      for (size_t i = 0; i < count; ++i) CHECK_EQ(data[i], value(i));
    });
    fake_cuda_synchronize(stream);
  }

 private:
  [[nodiscard]] int32_t* Real() const { return static_cast<int32_t*>(fake_cuda_real(data_)); }

  int32_t* const data_;
  const size_t count_;
};

/// Memory of a GPU that the host reads and writes when no work is under way.
class OnDevice {
 public:
  OnDevice(int device, size_t bytes) : data_(fake_cuda_allocate(device, bytes)) {}
  ~OnDevice() { fake_cuda_free(data_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] void* host() const { return fake_cuda_real(data_); }

 private:
  void* const data_;
};

inline Submission Allreduce(const std::string& name, const CaseTensor& tensor, const void* input,
                            void* output) {
  Submission submission = Make(Collective::kAllreduce, name, tensor.type,
                               {static_cast<int64_t>(tensor.count)}, input, output, tensor.op);
  submission.request.prescale = tensor.scale.pre;
  submission.request.postscale = tensor.scale.post;
  return submission;
}

/// Waits for the call, but not for its results, for which the stream waits.
inline void Finish(Engine& engine, const Result<uint64_t>& handle, void* stream) {
  CHECK(handle.ok());
  CHECK(engine.Wait(handle.value(), NowNs() + 60 * kSecond).ok());
  CHECK(engine.JoinStream(handle.value(), stream).ok());
  engine.Release(handle.value());
}

/// Allreduces of a GPU's tensors, which `fill` fills: the bits of the same calls of the host's.
/// Each twice, for the first one finds out what the GPUs can.
inline void CompareWithHost(
    Engine& engine, int device, const std::vector<CaseTensor>& tensors, bool in_place,
    const char* where,
    const std::function<void(const CaseTensor&, std::vector<std::byte>&)>& fill) {
  void* const stream = fake_cuda_stream(device);
  for (size_t t = 0; t < tensors.size(); ++t) {
    const size_t bytes = tensors[t].count * SizeOf(tensors[t].type);
    std::vector<std::byte> input(bytes), expected(bytes + 1);
    fill(tensors[t], input);
    const std::string name = std::to_string(t);
    // At an odd address, so that the calls are no cheap ones of shared memory.
    auto handle = engine.Submit(Allreduce("cpu" + name, tensors[t], input.data(), expected.data()));
    CHECK(handle.ok());
    CHECK(WaitAndRelease(engine, handle.value()).ok());
    const OnDevice given(device, bytes + 1), taken(device, bytes + 1);
    void* const output = in_place ? given.data() : taken.data();
    for (int turn = 0; turn < 2; ++turn) {
      if (bytes > 0) std::memcpy(given.host(), input.data(), bytes);
      Submission submission = Allreduce("gpu" + name, tensors[t], given.data(), output);
      submission.device = {device, stream};
      Finish(engine, engine.Submit(std::move(submission)), stream);
      fake_cuda_synchronize(stream);
      if (bytes == 0) continue;
      if (std::memcmp(fake_cuda_real(output), expected.data(), bytes) == 0) continue;
      check::Fail(__FILE__, __LINE__,
                  std::string(NameOf(tensors[t].op)) + " of " + std::to_string(tensors[t].count) +
                      " " + std::string(NameOf(tensors[t].type)) + " on " + where + ", turn " +
                      std::to_string(turn));
    }
  }
}

inline Submission OnGpu(Collective collective, const std::string& name, const Numbers& input,
                        const Numbers* output, void* stream, int root = 0, int device = 0) {
  Submission submission = Make(collective, name, DType::kInt32, input.shape(), input.data(),
                               output ? output->data() : nullptr);
  submission.request.root = root;
  submission.device = {device, stream};
  return submission;
}

inline int32_t Value(int rank, size_t i) {
  return static_cast<int32_t>((rank + 1) * (i % 1000 + 1));
}

}  // namespace horoacc::testing
