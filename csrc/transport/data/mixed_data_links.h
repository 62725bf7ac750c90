#pragma once
// Data links of several kinds as one: shared memory inside a host, sockets or MPI to the others.
#include <memory>
#include <vector>

#include "base/result.h"
#include "transport/data/data_links.h"

namespace horoacc {

/// `parts`: the kinds; `part_of`: by rank of the job, the index of the one that leads there, or -1.
/// Both ends of a link must choose alike. kSystem if the descriptors cannot be watched together.
[[nodiscard]] Result<std::unique_ptr<DataLinks>> MixDataLinks(
    std::vector<std::unique_ptr<DataLinks>> parts, std::vector<int> part_of);

}  // namespace horoacc
