#pragma once

namespace horoacc {

/// Throws what autograd hands to its Python caller as an AssertionError.
[[noreturn]] void RaiseAssertion(const char* message);

}  // namespace horoacc
