// The leaders of two hosts, one of which has proved the secret and says what it wants, whenever it
// wants: honest messages that are damaged, doubled or out of turn, and others.
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fuzz/input.h"
#include "support/multi_host_views.h"

using namespace horoacc;
using namespace horoacc::testing;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  MultiHostViews ranks({2, 2}, {}, /*grants=*/size % 2 != 0);
  constexpr uint32_t kRanks = 4;
  std::vector<std::pair<int, ControlMessage>> said;  // by receiver
  std::set<std::pair<int, std::string>> done;        // by this host's ranks, each once
  for (int turn = 0; turn < 60 && !input.empty(); ++turn) {
    const uint32_t action = input.Choose(8);
    const int rank = static_cast<int>(input.Choose(kRanks));
    const auto collective = static_cast<Collective>(input.Choose(kCollectiveCount));
    switch (action) {
      case 0: {
        const std::string name(1, static_cast<char>('a' + input.Choose(8)));
        if (done.emplace(rank, name).second) (void)ranks.Announce(rank, name, collective);
        break;
      }
      case 1:
        (void)ranks.controller(rank).Pump();
        (void)ranks.Carry(rank);
        break;
      case 2:
        (void)ranks.controller(rank).WhoHas(std::nullopt);
        break;
      case 3:
        if (input.Choose(4) == 0 && done.emplace(rank, "join").second)
          (void)ranks.controller(rank).Join(0);
        if (input.Choose(4) == 0 && done.emplace(rank, "end").second)
          (void)ranks.controller(rank).End(SetEnd::Left(rank));
        break;
      case 4:
        (void)ranks.Give(rank / 2 * 2, 2 - rank / 2 * 2, input.Bytes());
        break;
      default:
        if (said.empty()) break;
        auto [receiver, message] = said[input.Get<uint8_t>() % said.size()];
        if (action > 5) input.Damage(message.bytes);
        (void)ranks.Give(receiver, message.source, std::move(message.bytes));
    }
    for (int each = 0; each < static_cast<int>(kRanks); ++each) {
      for (ControlMessage& message : std::exchange(ranks.tap(each).sent, {}))
        said.push_back({message.source, {each, std::move(message.bytes)}});
    }
  }
  return 0;
}
