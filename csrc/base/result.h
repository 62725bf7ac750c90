#pragma once
// Error values that carry a kind, a culprit and a cause chain. csrc/ throws
// nothing but an ordered fault; exceptions of the standard library become an abort of the job.
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace horoacc {

/// The kinds of `horoacc.errors`.
enum class ErrorKind : int {
  kOk = 0,
  kMismatch = 1,     ///< ranks disagree about a tensor; every rank gets the same text
  kInvalid = 2,      ///< a bad argument on this rank (Python: ValueError)
  kPeerLost = 3,     ///< a rank died or left
  kTimeout = 4,      ///< a deadline passed
  kAborted = 5,      ///< the job was aborted by another rank, or shut down
  kConfig = 6,       ///< a setting or the environment cannot work
  kSystem = 7,       ///< a system call failed
  kUnsupported = 8,  ///< the operation has no meaning here (min of complex numbers)
};

/// Whether a received number is a kind.
[[nodiscard]] constexpr bool IsErrorKind(int64_t number) {
  return number >= 0 && number <= static_cast<int>(ErrorKind::kUnsupported);
}

struct Error {
  ErrorKind kind = ErrorKind::kSystem;
  std::string message;
  int culprit = -1;         ///< rank that caused it, or -1
  std::string host{};       ///< the culprit's, if it is known
  std::string tensor{};     ///< of the call that failed, if one did
  int64_t collective = -1;  ///< its index in its process set, or -1

  /// Prepends `what` to the message, so that a chain reads outermost first.
  [[nodiscard]] Error Within(const std::string& what) && {
    message = what + ": " + message;
    return std::move(*this);
  }
};

template <typename T = void>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}
  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  [[nodiscard]] T& value() & noexcept { return Held<0>(state_); }
  [[nodiscard]] T&& value() && noexcept { return std::move(Held<0>(state_)); }
  [[nodiscard]] const T& value() const& noexcept { return Held<0>(state_); }
  [[nodiscard]] Error& error() noexcept { return Held<1>(state_); }
  [[nodiscard]] const Error& error() const noexcept { return Held<1>(state_); }

 private:
  /// Ends the process if the caller did not check ok(): an exception could reach a destructor or
  /// the C API.
  template <size_t kWhich, typename State>
  [[nodiscard]] static auto& Held(State& state) noexcept {
    auto* const held = std::get_if<kWhich>(&state);
    if (held == nullptr) std::abort();
    return *held;
  }

  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}
  [[nodiscard]] bool ok() const { return !error_; }
  [[nodiscard]] Error& error() { return *error_; }
  [[nodiscard]] const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

[[nodiscard]] inline Error MakeError(ErrorKind kind, std::string message, int culprit = -1) {
  return Error{kind, std::move(message), culprit};
}

/// Advice for the user: the next place to look at.
[[nodiscard]] std::string HintOf(const Error& error);

/// A kSystem error with the call and the text of errno.
[[nodiscard]] Error SystemError(const std::string& call);

}  // namespace horoacc

#define HA_CONCAT_(a, b) a##b
#define HA_CONCAT(a, b) HA_CONCAT_(a, b)

/// Returns the error of a Status expression to the caller.
#define HA_TRY(expr)                                \
  do {                                              \
    if (auto ha_status = (expr); !ha_status.ok()) { \
      return std::move(ha_status.error());          \
    }                                               \
  } while (false)

/// Declares `decl` from a Result expression, or returns its error.
#define HA_ASSIGN(decl, expr)                                  \
  auto HA_CONCAT(ha_result_, __LINE__) = (expr);               \
  if (!HA_CONCAT(ha_result_, __LINE__).ok()) {                 \
    return std::move(HA_CONCAT(ha_result_, __LINE__).error()); \
  }                                                            \
  decl = std::move(HA_CONCAT(ha_result_, __LINE__)).value()
