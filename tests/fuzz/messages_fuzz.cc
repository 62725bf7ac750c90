// What a rank of another host says of messages between two ranks: headers that say what they want,
// and data that fit them or do not.
#include "fuzz/input.h"
#include "support/two_ranks.h"

using namespace horoacc;
using namespace horoacc::testing;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kSmall = 100, kBig = 3 << 20;
  fuzz::Input input(data, size);
  TwoRanks ranks;
  for (const int32_t tag : {1, 2, 3}) ranks.Expect(tag, tag == 1 ? kSmall : kBig);
  ranks.Offer(1, kBig);  // its number is 1
  Status heard;
  for (int turn = 0; turn < 40 && !input.empty() && heard.ok(); ++turn) {
    const uint32_t action = input.Choose(8);
    if (action < 5) {
      MessageHeader header;
      header.kind = static_cast<MessageHeader::Kind>(input.Choose(8));
      header.tag = static_cast<int32_t>(input.Choose(5));
      header.number = input.Choose(8) == 0 ? input.Get<uint64_t>() : input.Choose(5);
      static constexpr uint64_t kSizes[] = {0, 7, kSmall, 300, kBig, LinkMessages::kGaveUp};
      const uint32_t which = input.Choose(8);
      header.bytes = which < 6 ? kSizes[which] : input.Get<uint64_t>();
      ranks.Say(header);
      if (action == 1) ranks.Say(std::vector<std::byte>(kSmall));
    } else if (action == 5) {
      ranks.Say(input.Bytes());
    } else if (action == 6) {
      // Number 0 is the link of the headers.
      ranks.SayWindow(1 + input.Choose(4), input.Choose(4) == 0 ? input.Get<uint16_t>() : 1 << 20);
    }
    heard = ranks.Turn();
  }
  ranks.DropAll();
  CHECK_EQ(ranks.ended(), 4);
  return 0;
}
