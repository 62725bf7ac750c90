#include "transport/bootstrap/gather_wire.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace horoacc {
namespace {

template <typename T>
void Put(std::string& text, T value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
bool Take(std::span<const std::byte>& bytes, T* value) {
  if (bytes.size() < sizeof(T)) return false;
  std::memcpy(value, bytes.data(), sizeof(T));
  bytes = bytes.subspan(sizeof(T));
  return true;
}

}  // namespace

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string PackError(const Error& error) {
  std::string text;
  Put(text, static_cast<int32_t>(error.kind));
  Put(text, static_cast<int32_t>(error.culprit));
  return text + error.message;
}

Error UnpackError(std::span<const std::byte> bytes) {
  int32_t kind = 0;
  int32_t culprit = -1;
  if (!Take(bytes, &kind) || !Take(bytes, &culprit) || !IsErrorKind(kind)) {
    return MakeError(ErrorKind::kSystem, "rank 0 reported a failure without a reason", 0);
  }
  return MakeError(static_cast<ErrorKind>(kind), TextOf(bytes), culprit);
}

std::string PackTable(const std::vector<std::string>& blobs) {
  std::string text;
  for (const std::string& blob : blobs) {
    Put(text, static_cast<uint64_t>(blob.size()));
    text += blob;
  }
  return text;
}

Result<std::vector<std::string>> UnpackTable(std::span<const std::byte> bytes, int size) {
  std::vector<std::string> blobs;
  for (int rank = 0; rank < size; ++rank) {
    uint64_t length = 0;
    if (!Take(bytes, &length) || length > bytes.size()) {
      return MakeError(ErrorKind::kSystem, "rank 0 sent a broken table", 0);
    }
    blobs.push_back(TextOf(bytes.first(length)));
    bytes = bytes.subspan(length);
  }
  return blobs;
}

std::string PackRuns(const std::vector<int>& numbers) {
  struct Runs {  // of `length` numbers each: the first is `value`, then one `step` higher, and on
    int32_t value, length, step, count;
  };
  std::vector<Runs> all;
  for (size_t at = 0; at < numbers.size();) {
    size_t end = at;
    while (end < numbers.size() && numbers[end] == numbers[at]) ++end;
    const Runs next{numbers[at], static_cast<int32_t>(end - at), 0, 1};
    Runs* const last = all.empty() ? nullptr : &all.back();
    const int32_t latest = last ? last->value + last->step * (last->count - 1) : 0;
    if (last && last->length == next.length &&
        (last->count == 1 || latest + last->step == next.value)) {
      if (last->count++ == 1) last->step = next.value - last->value;
    } else {
      all.push_back(next);
    }
    at = end;
  }
  std::string text;
  for (const Runs& runs : all) Put(text, runs);
  return text;
}

Result<std::vector<int>> UnpackRuns(const std::string& text, int count) {
  std::vector<int> numbers;
  for (std::span<const std::byte> bytes = BytesOf(text); !bytes.empty();) {
    int32_t value = 0;
    int32_t length = 0;
    int32_t step = 0;
    int32_t runs = 0;
    const bool whole =
        Take(bytes, &value) && Take(bytes, &length) && Take(bytes, &step) && Take(bytes, &runs);
    if (!whole || length < 1 || runs < 1 || length > count || runs > count ||
        static_cast<int64_t>(length) * runs > count - std::ssize(numbers))
      return MakeError(ErrorKind::kSystem, "rank 0 sent a broken list of runs", 0);
    for (int32_t run = 0; run < runs; ++run)
      numbers.insert(numbers.end(), length, static_cast<int>(value + int64_t{step} * run));
  }
  if (std::ssize(numbers) != count)
    return MakeError(ErrorKind::kSystem, "rank 0 sent a list of runs of another length", 0);
  return numbers;
}

std::string PackNames(const std::vector<std::string>& names) {
  constexpr size_t kMostDigits = 9;
  struct Run {
    std::string prefix, digits;
    uint64_t step, count;
  };
  std::vector<Run> runs;
  for (const std::string& name : names) {
    size_t at = name.size();
    while (at > 0 && name.size() - at < kMostDigits && name[at - 1] >= '0' && name[at - 1] <= '9')
      --at;
    const Run next{name.substr(0, at), name.substr(at), 0, 1};
    Run* const last = runs.empty() ? nullptr : &runs.back();
    if (last && last->prefix == next.prefix && last->digits.size() == next.digits.size()) {
      const uint64_t first = std::strtoull(last->digits.c_str(), nullptr, 10);
      const uint64_t number = std::strtoull(next.digits.c_str(), nullptr, 10);
      const bool begins = last->count == 1 && (number == first || number == first + 1);
      if (begins) last->step = number - first;
      if (begins || number == first + last->step * last->count) {
        ++last->count;
        continue;
      }
    }
    runs.push_back(next);
  }
  std::string text;
  for (const Run& run : runs) {
    text += run.prefix + '\t' + run.digits + '\t' + std::to_string(run.step) + '\t' +
            std::to_string(run.count) + '\n';
  }
  return text;
}

Result<std::vector<std::string>> UnpackNames(const std::string& text, int count) {
  std::vector<std::string> names;
  std::istringstream lines(text);
  for (std::string prefix, digits, step, many; std::getline(lines, prefix, '\t');) {
    std::getline(lines, digits, '\t');
    std::getline(lines, step, '\t');
    const bool whole = static_cast<bool>(std::getline(lines, many, '\n'));
    const uint64_t run = std::strtoull(many.c_str(), nullptr, 10);
    if (!whole || digits.size() > 9 || run > static_cast<uint64_t>(count - std::ssize(names)))
      return MakeError(ErrorKind::kSystem, "rank 0 sent a broken list of names", 0);
    const uint64_t first = std::strtoull(digits.c_str(), nullptr, 10);
    for (uint64_t k = 0; k < run; ++k) {
      std::string number = std::to_string(first + (step == "1" ? k : 0));
      if (digits.empty()) number.clear();
      number.insert(0, digits.size() - std::min(digits.size(), number.size()), '0');
      names.push_back(prefix + number);
    }
  }
  return names;
}

std::string NamesOfMissing(const std::vector<bool>& present) {
  constexpr int kNamed = 10;
  std::string names;
  int count = 0;
  for (size_t rank = 0; rank < present.size(); ++rank) {
    if (present[rank] || ++count > kNamed) continue;
    names += (names.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (count > kNamed) names += " and " + std::to_string(count - kNamed) + " more";
  return names;
}

Error StillMissing(const std::vector<bool>& present) {
  const auto first = std::ranges::find(present, false) - present.begin();
  return MakeError(ErrorKind::kTimeout,
                   "bootstrap: still waiting for rank(s) " + NamesOfMissing(present),
                   static_cast<int>(first));
}

int64_t WithVerdictGrace(int64_t deadline_ns) {
  return deadline_ns + std::min(kVerdictGraceNs, INT64_MAX - deadline_ns);
}

}  // namespace horoacc
