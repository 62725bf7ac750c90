#include "transport/data/data_links.h"

namespace horoacc {

std::string NameOfMessage(const CollectiveId& collective, uint8_t channel, uint64_t number,
                          int sender) {
  return "collective " + std::to_string(collective.sequence) + " of set " +
         std::to_string(collective.set) + ", channel " + std::to_string(channel) + ", message " +
         std::to_string(number) + " from rank " + std::to_string(sender);
}

}  // namespace horoacc
