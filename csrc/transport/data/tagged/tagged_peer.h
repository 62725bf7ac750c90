#pragma once
// What a rank keeps of another one over tagged links.
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "transport/data/data_frame.h"
#include "transport/data/tagged/tagged_links.h"
#include "transport/data/tagged/tagged_notice.h"

namespace horoacc {

class TaggedSendLink;
class TaggedReceiveLink;

struct TaggedPeer {
  bool met = false;
  Notice arriving;
  void* request = nullptr;  ///< for `arriving`
  std::deque<std::unique_ptr<Posted>> notices;
  std::map<LinkKey, uint64_t> credits;  ///< to be told
  std::map<LinkKey, uint32_t> grants;   ///< that came before their link was opened
  std::map<LinkKey, TaggedSendLink*> sending;
  std::map<LinkKey, TaggedReceiveLink*> receiving;
  std::vector<uint32_t> free_tags;
  uint32_t next_tag = TaggedCarrier::kFirstTag;
};

}  // namespace horoacc
