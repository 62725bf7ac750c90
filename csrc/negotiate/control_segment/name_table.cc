#include "negotiate/control_segment/name_table.h"

#include <algorithm>
#include <cstring>

namespace horoacc {

uint64_t HashName(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash ^ (hash >> 29);
}

std::string ShortName(std::string_view name) {
  if (name.size() <= kMaxName) return std::string(name);
  constexpr size_t kDigits = 16;
  std::string digits(kDigits, '0');
  uint64_t hash = HashName(name);
  for (size_t k = kDigits; k-- > 0; hash /= 16) digits[k] = "0123456789abcdef"[hash % 16];
  return std::string(name.substr(0, kMaxName - kDigits - 1)) + '~' + digits;
}

// The table is twice as large as there are names, so a free place ends every chain.
NameTable::Place NameTable::Probe(std::string_view name) const {
  const uint64_t hash = HashName(name);
  Place place{static_cast<uint32_t>(hash % kNameSlots), std::nullopt};
  for (; places_[place.slot] != 0; place.slot = (place.slot + 1) % kNameSlots) {
    const uint32_t id = places_[place.slot] - 1;
    if (ids_[id].name_hash == hash && name == View(id)) {
      place.id = id;
      return place;
    }
  }
  return place;
}

void NameTable::Insert(uint32_t id, std::string_view name) {
  IdEntry& entry = ids_[id];
  entry.name_hash = HashName(name);
  entry.name_length = static_cast<uint32_t>(name.size());
  std::memcpy(entry.name, name.data(), name.size());
  places_[Probe(name).slot] = id + 1;
}

// Moves up the ids that stand behind `id` in its chain only because the place was taken: no id gets
// lost behind the hole, and chains do not grow with time.
void NameTable::Remove(uint32_t id) {
  uint32_t hole = static_cast<uint32_t>(ids_[id].name_hash % kNameSlots);
  while (places_[hole] != id + 1) hole = (hole + 1) % kNameSlots;
  for (uint32_t at = (hole + 1) % kNameSlots; places_[at] != 0; at = (at + 1) % kNameSlots) {
    const auto home = static_cast<uint32_t>(ids_[places_[at] - 1].name_hash % kNameSlots);
    const uint32_t from_home = (at + kNameSlots - home) % kNameSlots;
    const uint32_t from_hole = (at + kNameSlots - hole) % kNameSlots;
    if (from_home < from_hole) continue;  // its own place lies behind the hole
    places_[hole] = places_[at];
    hole = at;
  }
  places_[hole] = 0;
  ids_[id].name_length = 0;
}

std::string_view NameTable::View(uint32_t id) const {
  return {ids_[id].name, ids_[id].name_length};
}

}  // namespace horoacc
