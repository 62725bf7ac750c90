#pragma once

namespace horoacc {

/// Lets Python run its signal handlers; throws what one of them raised. Takes the GIL.
void CheckSignals();

}  // namespace horoacc
