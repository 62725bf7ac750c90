#pragma once
// A strict reader of JSON: what it takes, every reader takes.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "support/check.h"

namespace horoacc::testing {

/// A JSON value. Only what a trace may hold: no null, and objects keep no duplicate keys.
struct Json {
  enum class Kind { kObject, kArray, kString, kNumber, kBool } kind = Kind::kBool;
  std::map<std::string, Json> fields;
  std::vector<Json> items;
  std::string text;
  double number = 0;

  [[nodiscard]] bool Has(const std::string& key) const { return fields.contains(key); }
  [[nodiscard]] const Json& At(const std::string& key) const {
    const auto found = fields.find(key);
    if (found == fields.end()) check::Fail(__FILE__, __LINE__, "no field '" + key + "'");
    return found->second;
  }
};

/// RFC 8259, and nothing more lenient than it.
class JsonParser {
 public:
  static std::optional<Json> Parse(std::string_view text) {
    JsonParser parser(text);
    Json value;
    if (!parser.Value(value)) return std::nullopt;
    parser.Space();
    if (!parser.rest_.empty()) return std::nullopt;
    return value;
  }

 private:
  explicit JsonParser(std::string_view text) : rest_(text) {}

  void Space() {
    const size_t first = std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size());
    rest_.remove_prefix(first);
  }
  bool Take(std::string_view token) {
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  bool Value(Json& value) {
    Space();
    if (rest_.starts_with('{')) return Object(value);
    if (rest_.starts_with('[')) return Array(value);
    if (rest_.starts_with('"')) {
      value.kind = Json::Kind::kString;
      return String(value.text);
    }
    if (Take("true")) {
      value.number = 1;
      return true;
    }
    if (Take("false")) return true;
    return Number(value);
  }
  bool Object(Json& value) {
    value.kind = Json::Kind::kObject;
    Take("{");
    Space();
    if (Take("}")) return true;
    do {
      Space();
      std::string key;
      if (!String(key)) return false;
      Space();
      if (!Take(":") || value.fields.contains(key) || !Value(value.fields[key])) return false;
      Space();
    } while (Take(","));
    return Take("}");
  }
  bool Array(Json& value) {
    value.kind = Json::Kind::kArray;
    Take("[");
    Space();
    if (Take("]")) return true;
    do {
      if (!Value(value.items.emplace_back())) return false;
      Space();
    } while (Take(","));
    return Take("]");
  }
  bool Number(Json& value) {
    value.kind = Json::Kind::kNumber;
    size_t at = 0;
    const auto digits = [&] {
      const size_t first = at;
      while (at < rest_.size() && rest_[at] >= '0' && rest_[at] <= '9') ++at;
      return at - first;
    };
    if (rest_.starts_with('-')) ++at;
    const bool zero = at < rest_.size() && rest_[at] == '0';
    const size_t whole = digits();
    if (whole == 0 || (zero && whole > 1)) return false;
    if (at < rest_.size() && rest_[at] == '.') {
      ++at;
      if (digits() == 0) return false;
    }
    value.number = std::strtod(std::string(rest_.substr(0, at)).c_str(), nullptr);
    rest_.remove_prefix(at);
    return true;
  }
  bool String(std::string& text) {
    if (!Take("\"")) return false;
    while (!rest_.empty() && rest_.front() != '"') {
      const auto byte = static_cast<unsigned char>(rest_.front());
      if (byte < 0x20) return false;
      rest_.remove_prefix(1);
      if (byte != '\\') {
        text += static_cast<char>(byte);
      } else if (!Escape(text)) {
        return false;
      }
    }
    return Take("\"");
  }
  bool Escape(std::string& text) {
    constexpr std::string_view kLetters = "\"\\/bfnrt";
    constexpr std::string_view kMeant = "\"\\/\b\f\n\r\t";
    if (rest_.empty()) return false;
    if (const size_t at = kLetters.find(rest_.front()); at != std::string_view::npos) {
      text += kMeant[at];
      rest_.remove_prefix(1);
      return true;
    }
    if (!Take("u") || rest_.size() < 4) return false;
    const std::string hex(rest_.substr(0, 4));
    if (hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) return false;
    rest_.remove_prefix(4);
    const unsigned long code = std::strtoul(hex.c_str(), nullptr, 16);
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else if (code < 0x800) {
      text += {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
    } else {
      text += {static_cast<char>(0xe0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3f)),
               static_cast<char>(0x80 | (code & 0x3f))};
    }
    return true;
  }

  std::string_view rest_;
};

}  // namespace horoacc::testing
