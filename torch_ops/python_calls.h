#pragma once

namespace horoacc {

/// Lets Python run its signal handlers; throws the exception that one of them raised. Takes the
/// GIL.
void CheckSignals();

/// Throws an error that autograd raises in its Python caller as an AssertionError.
[[noreturn]] void RaiseAssertion(const char* message);

}  // namespace horoacc
