#pragma once
// What versions of torch before 2.13, from 2.10 on, lack or call otherwise.
#include <torch/headeronly/version.h>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#define HOROACC_TORCH_BEFORE(minor) (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < (minor))

namespace horoacc {

#if HOROACC_TORCH_BEFORE(13)
using PreMulSumSupplement = c10d::NCCLPreMulSumSupplement;
#else
using c10d::PreMulSumSupplement;
#endif

#if HOROACC_TORCH_BEFORE(12)
inline constexpr auto kReduceScatterCoalesced = c10d::OpType::COALESCED;
#else
inline constexpr auto kReduceScatterCoalesced = c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED;
#endif

}  // namespace horoacc
