#pragma once

namespace horoacc {

/// Releases the GIL in its scope, if this thread has it: c10d calls `is_completed`, `synchronize`
/// and `get_future` with it, and what they wait for may need it.
class WithoutGil {
 public:
  WithoutGil();
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* thread_ = nullptr;  ///< Python's state of this thread
};

/// Lets Python run its signal handlers; throws the exception that one of them raised. Takes the
/// GIL.
void CheckSignals();

/// Throws an error that autograd raises in its Python caller as an AssertionError.
[[noreturn]] void RaiseAssertion(const char* message);

}  // namespace horoacc
