#include "schedule/measured.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "schedule/algorithms.h"

namespace horoacc::schedule {
namespace {

constexpr std::string_view kOfGpus = "gpu_";

template <typename Number>
std::optional<Number> NumberIn(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// Removes the text up to the first `mark`, and the mark; returns that text.
std::string_view Before(std::string_view& text, char mark) {
  const size_t at = text.find(mark);
  const std::string_view part = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view() : text.substr(at + 1);
  return part;
}

}  // namespace

Result<MeasuredTable> MeasuredTable::Parse(std::string_view text) {
  MeasuredTable table;
  while (!text.empty()) {
    const std::string row(Before(text, ';'));
    std::string_view left = row;
    const std::string name(Before(left, '@'));
    std::string_view hosts = Before(left, ':');
    const auto bytes = NumberIn<uint64_t>(Before(left, '='));
    const auto seconds = NumberIn<double>(left);
    std::vector<uint32_t> ranks;
    bool counted = !hosts.empty();
    while (!hosts.empty()) {
      const auto local = NumberIn<uint32_t>(Before(hosts, ','));
      counted &= local.has_value() && *local > 0;
      ranks.push_back(local.value_or(0));
    }
    if (!counted || !bytes || !seconds || !std::isfinite(*seconds) || *seconds <= 0 ||
        !(FindAlgorithm(name).ok() || name.starts_with(kOfGpus))) {
      return MakeError(ErrorKind::kInvalid, "'" + row + "' is no measurement");
    }
    table.points_[{name, std::move(ranks)}].push_back({*bytes, *seconds});
  }
  for (auto& [key, points] : table.points_) std::ranges::sort(points, {}, &Point::bytes);
  return table;
}

bool MeasuredTable::Has(std::string_view name) const {
  return std::ranges::any_of(points_, [&](const auto& row) { return row.first.first == name; });
}

const std::vector<MeasuredTable::Point>& MeasuredTable::Of(
    std::string_view name, const std::vector<uint32_t>& ranks) const {
  static const std::vector<Point> kNone;
  const auto found = points_.find({std::string(name), ranks});
  return found == points_.end() ? kNone : found->second;
}

const std::vector<MeasuredTable::Point>& MeasuredTable::Of(std::string_view algorithm,
                                                           const Topology& topology) const {
  std::vector<uint32_t> ranks;
  for (uint32_t host = 0; host < topology.hosts(); ++host) ranks.push_back(topology.local(host));
  return Of(algorithm, ranks);
}

}  // namespace horoacc::schedule
