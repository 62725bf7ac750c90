#pragma once
// What tells one init of one job from every other: a secret and an epoch, both drawn by rank 0.
#include <cstdint>
#include <string>

#include "base/result.h"
#include "transport/bootstrap/bootstrap.h"

namespace horoacc {

/// A secret for a job that got none from its launcher (plain mpirun): rank 0 draws it, and MPI,
/// which the ranks trust anyway, carries it to the others. Every rank calls it.
Result<std::string> DrawSecret(Bootstrap& bootstrap, int64_t deadline_ns);

/// A number that nobody can guess, the same on all ranks and another one at every init. Every
/// handshake and every frame of the links has it, so that what an earlier init left on its way, or
/// a rank that did not hear of its end, cannot get into a later one. Every rank calls it.
Result<uint64_t> DrawEpoch(Bootstrap& bootstrap, int64_t deadline_ns);

}  // namespace horoacc
