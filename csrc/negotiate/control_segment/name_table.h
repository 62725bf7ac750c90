#pragma once
// From a name to its id, in shared memory: open addressing over the entries of the ids.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "negotiate/control_segment/segment_layout.h"

namespace horoacc {

[[nodiscard]] uint64_t HashName(std::string_view name);

/// The name under which the ranks match a call: a name that is longer than kMaxName goes by its
/// beginning and its hash.
[[nodiscard]] std::string ShortName(std::string_view name);

/// A view of a set's part of the control segment, which needs the set's lock for everything but
/// NameOf of an id that is in use.
class NameTable {
 public:
  NameTable() = default;
  /// `places`: kNameSlots words of id + 1, or 0.
  NameTable(IdEntry* ids, uint32_t* places) : ids_(ids), places_(places) {}

  /// Of a ShortName, as in Insert.
  [[nodiscard]] std::optional<uint32_t> Find(std::string_view name) const { return Probe(name).id; }
  /// `name` is not in the table, and `id` has no name.
  void Insert(uint32_t id, std::string_view name);
  void Remove(uint32_t id);
  [[nodiscard]] std::string NameOf(uint32_t id) const { return std::string(View(id)); }
  /// The content of a place: id + 1, or 0 if it is free.
  [[nodiscard]] uint32_t at(uint32_t place) const { return places_[place]; }

 private:
  /// Where a name is, or would go.
  struct Place {
    uint32_t slot;
    std::optional<uint32_t> id;
  };
  [[nodiscard]] Place Probe(std::string_view name) const;
  [[nodiscard]] std::string_view View(uint32_t id) const;

  IdEntry* ids_ = nullptr;
  uint32_t* places_ = nullptr;
};

}  // namespace horoacc
