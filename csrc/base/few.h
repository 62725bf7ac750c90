#pragma once
// A list that mostly has one element, which it holds itself: a job submits thousands of tensors a
// step, each in a call of its own.
#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

namespace horoacc {

/// As a std::vector, but without an allocation for the first element. What is there moves when a
/// second one comes.
template <typename T>
class Few {
 public:
  Few() = default;
  Few(std::initializer_list<T> items) {
    reserve(items.size());
    for (const T& item : items) push_back(item);
  }

  [[nodiscard]] size_t size() const { return one_ ? 1 : many_.size(); }
  [[nodiscard]] bool empty() const { return size() == 0; }
  [[nodiscard]] T* begin() { return one_ ? &*one_ : many_.data(); }
  [[nodiscard]] T* end() { return begin() + size(); }
  [[nodiscard]] const T* begin() const { return one_ ? &*one_ : many_.data(); }
  [[nodiscard]] const T* end() const { return begin() + size(); }
  [[nodiscard]] T& operator[](size_t index) { return begin()[index]; }
  [[nodiscard]] const T& operator[](size_t index) const { return begin()[index]; }
  [[nodiscard]] T& front() { return *begin(); }
  [[nodiscard]] const T& front() const { return *begin(); }

  void reserve(size_t count) {
    if (count > 1) many_.reserve(count);
  }
  T& emplace_back() {
    // To clang a nested class has no default constructor inside its own class, thus in no trait.
    if (empty() && many_.capacity() == 0) return one_.emplace(T());
    if (one_) {
      many_.push_back(std::move(*one_));
      one_.reset();
    }
    return many_.emplace_back();
  }
  void push_back(T item) { emplace_back() = std::move(item); }
  void clear() {
    one_.reset();
    many_.clear();
  }
  void resize(size_t count) {
    if (count == 0) one_.reset();
    if (count < many_.size()) many_.resize(count);
    while (size() < count) (void)emplace_back();
  }

  bool operator==(const Few& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }

 private:
  std::optional<T> one_;  ///< the only element, unless room for more was made
  std::vector<T> many_;   ///< else all
};

}  // namespace horoacc
