#pragma once
// The cost of the algorithms, in closed form and without their code, so that counting the steps is
// a check of both. S is the whole vector, P the ranks, H hosts, L ranks of a host.
#include "schedule/algorithms.h"

namespace horoacc::schedule::cost {

[[nodiscard]] Fraction Ring(const Plan& plan, uint32_t rank);        ///< 2S(P-1)/P
[[nodiscard]] Fraction Half(const Plan& plan, uint32_t rank);        ///< S(P-1)/P
[[nodiscard]] Fraction DoubleTree(const Plan& plan, uint32_t rank);  ///< at most 2S
[[nodiscard]] Fraction Trees(const Plan& plan, uint32_t rank);
[[nodiscard]] Fraction HierarchicalRing(const Plan& plan, uint32_t rank);
[[nodiscard]] Fraction HierarchicalTree(const Plan& plan, uint32_t rank);
[[nodiscard]] Fraction CpuReduceRing(const Plan& plan, uint32_t rank);
[[nodiscard]] Fraction CpuReduceTree(const Plan& plan, uint32_t rank);
[[nodiscard]] Fraction Canonical(const Plan& plan, uint32_t rank);
[[nodiscard]] Fraction CanonicalReduceScatter(const Plan& plan, uint32_t rank);
[[nodiscard]] Fraction CanonicalReduce(const Plan& plan, uint32_t rank);
[[nodiscard]] Fraction ChainBroadcast(const Plan& plan, uint32_t rank);
[[nodiscard]] Fraction TreeBroadcast(const Plan& plan, uint32_t rank);
[[nodiscard]] Fraction ToParent(const Plan& plan, uint32_t rank);  ///< S, and nothing from the root
[[nodiscard]] Fraction RailAllToAll(const Plan& plan, uint32_t rank);

[[nodiscard]] uint32_t RingRounds(const Plan& plan);
[[nodiscard]] uint32_t HalfRingRounds(const Plan& plan);
[[nodiscard]] uint32_t TreeRounds(const Plan& plan);
[[nodiscard]] uint32_t LogRounds(const Plan& plan);
[[nodiscard]] uint32_t HierarchicalRingRounds(const Plan& plan);
[[nodiscard]] uint32_t HierarchicalTreeRounds(const Plan& plan);
[[nodiscard]] uint32_t CpuReduceRingRounds(const Plan& plan);
[[nodiscard]] uint32_t CpuReduceTreeRounds(const Plan& plan);
[[nodiscard]] uint32_t CanonicalRounds(const Plan& plan);
[[nodiscard]] uint32_t CanonicalReduceScatterRounds(const Plan& plan);
[[nodiscard]] uint32_t CanonicalReduceRounds(const Plan& plan);
[[nodiscard]] uint32_t OneRound(const Plan& plan);
[[nodiscard]] uint32_t RailAllToAllRounds(const Plan& plan);

}  // namespace horoacc::schedule::cost
