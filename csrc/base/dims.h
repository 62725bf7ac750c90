#pragma once
// The dimensions of a tensor, without an allocation: a job submits thousands of tensors a step.
#include <algorithm>
#include <cstdint>
#include <initializer_list>

namespace horoacc {

inline constexpr int kMaxDims = 16;

/// At most kMaxDims numbers. Further ones are counted but not stored, for validation's error.
class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<int64_t> dims) : Dims(dims.begin(), dims.end()) {}
  Dims(const int64_t* first, const int64_t* last) { assign(first, last); }
  // Most tensors have a few dimensions: the rest is not touched.
  Dims(const Dims& other) { *this = other; }
  Dims& operator=(const Dims& other) {
    if (this == &other) return *this;
    count_ = other.count_;
    std::copy_n(other.dims_, size(), dims_);
    return *this;
  }
  ~Dims() = default;

  void assign(const int64_t* first, const int64_t* last) {
    count_ = static_cast<uint32_t>(last - first);
    std::copy_n(first, size(), dims_);
  }
  void push_back(int64_t dim) {
    if (count_ < static_cast<uint32_t>(kMaxDims)) dims_[count_] = dim;
    ++count_;
  }
  [[nodiscard]] uint32_t size() const { return std::min(count_, static_cast<uint32_t>(kMaxDims)); }
  [[nodiscard]] uint32_t given() const { return count_; }
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] const int64_t* begin() const { return dims_; }
  [[nodiscard]] const int64_t* end() const { return dims_ + size(); }
  [[nodiscard]] int64_t& operator[](size_t dim) { return dims_[dim]; }
  [[nodiscard]] int64_t operator[](size_t dim) const { return dims_[dim]; }
  bool operator==(const Dims& other) const {
    return count_ == other.count_ && std::equal(begin(), end(), other.begin());
  }

 private:
  uint32_t count_ = 0;
  int64_t dims_[kMaxDims];
};

}  // namespace horoacc
