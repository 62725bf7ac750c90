#include "runtime/trace/trace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

namespace horoacc {
namespace {

constexpr uint64_t kPage = 4096;
constexpr std::string_view kTail = "\n]\n";
constexpr mode_t kFileMode = 0666;  // the umask takes away permissions

std::string Reason(const char* call, int code) {
  return std::string(call) + ": " + std::strerror(code) + " (errno " + std::to_string(code) + ")";
}

/// Length of the well-formed UTF-8 sequence that `text` starts with, or 0. The ranges of the
/// second byte keep out overlong forms, surrogates and numbers above U+10FFFF (table 3-7 of the
/// Unicode Standard).
size_t SequenceLength(std::string_view text) {
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (text.size() < length) return 0;
  const unsigned char least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned char most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < least || byte(1) > most) return 0;
  for (size_t at = 2; at < length; ++at) {
    if ((byte(at) & 0xc0) != 0x80) return 0;
  }
  return length;
}

std::string Micros(Ticks ticks) {
  constexpr const char* kEighths[] = {"", ".125", ".25", ".375", ".5", ".625", ".75", ".875"};
  return std::to_string(ticks / 8) + kEighths[ticks % 8];
}

/// The start of an event; `kind` is the letter that the format calls its phase.
std::string Opened(std::string_view name, char kind, const std::string& rank, size_t lane) {
  return R"({"name":)" + JsonString(name) + R"(,"ph":")" + kind + R"(","pid":)" + rank +
         R"(,"tid":)" + std::to_string(lane);
}

std::string Closed(std::string event, std::string_view args) {
  if (!args.empty()) event.append(R"(,"args":{)").append(args).append("}");
  return event += '}';
}

}  // namespace

std::string JsonString(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string json = "\"";
  json.reserve(text.size() + 2);
  while (!text.empty()) {
    const char first = text.front();
    const size_t length = SequenceLength(text);
    if (length == 0) {
      json += "\\ufffd";
    } else if (first == '"' || first == '\\') {
      json += {'\\', first};
    } else if (const auto code = static_cast<unsigned char>(first); code < 0x20 || code == 0x7f) {
      json += {'\\', 'u', '0', '0', kHex[code >> 4], kHex[code & 0xf]};
    } else {
      json += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return json += '"';
}

Result<TraceFile> TraceFile::Create(const std::string& path, int rank) {
  const std::string where = "cannot write the timeline '" + path + "'";
  Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, kFileMode));
  if (!fd) return MakeError(ErrorKind::kConfig, where + ": " + Reason("open", errno));
  const auto epoch = std::chrono::system_clock::now().time_since_epoch();
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(epoch).count();
  TraceFile file(std::move(fd), rank);
  file.AddMetadata("process_name", R"("name":"rank )" + file.rank_ +
                                       R"(","start_time_since_epoch_in_micros":)" +
                                       std::to_string(micros));
  if (Status written = file.Flush(); !written.ok()) {
    return MakeError(ErrorKind::kConfig, where + ": " + written.error().message);
  }
  return file;
}

void TraceFile::AddLane(size_t lane, std::string_view title) {
  Add(Closed(Opened("thread_name", 'M', rank_, lane), R"("name":)" + JsonString(title)));
}

void TraceFile::AddSlice(size_t lane, std::string_view name, Ticks from, Ticks to,
                         std::string_view args) {
  Add(Closed(Opened(name, 'X', rank_, lane) + R"(,"ts":)" + Micros(from) + R"(,"dur":)" +
                 Micros(to - from),
             args));
}

void TraceFile::AddInstant(size_t lane, std::string_view name, Ticks time, std::string_view args) {
  Add(Closed(Opened(name, 'i', rank_, lane) + R"(,"s":"t","ts":)" + Micros(time), args));
}

void TraceFile::AddMetadata(std::string_view name, std::string_view args) {
  Add(Closed(Opened(name, 'M', rank_, 0), args));
}

void TraceFile::Add(std::string_view event) {
  if (end_ == 0) {
    pending_.append("[\n").append(event);
    return;
  }
  constexpr std::string_view kBetween = ",\n";
  const auto ends_on_page_of = [&](uint64_t last, size_t added) {
    return last / kPage == (last + added + kTail.size()) / kPage;
  };
  const uint64_t added = kBetween.size() + event.size();
  if (!ends_on_page_of(end_ + pending_.size() - 1, added)) {
    // A failure stays in outcome_; the caller's own Flush() returns it.
    (void)Flush();
    if (!ends_on_page_of(end_ - 1, added) && added + kTail.size() < kPage) {
      // Padding, so that the first of the two pages lacks only the closing bracket.
      pending_.assign((kPage - end_ % kPage) % kPage, ' ');
    }
  }
  pending_ += kBetween;
  pending_ += event;
}

Status TraceFile::Flush() {
  if (!outcome_.ok() || pending_.empty()) {
    pending_.clear();
    return outcome_;
  }
  const uint64_t added = pending_.size();
  pending_ += kTail;
  outcome_ = Write(pending_);
  pending_.clear();
  if (outcome_.ok()) {
    end_ += added;
  } else if (end_ > 0 && Write(kTail).ok()) {
    // Makes the older events a whole array again, without a part of the failed write.
    [[maybe_unused]] const int cut =
        ::ftruncate(fd_.get(), static_cast<off_t>(end_ + kTail.size()));
  }
  return outcome_;
}

Status TraceFile::Write(std::string_view bytes) const {
  uint64_t at = end_;
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      return MakeError(ErrorKind::kSystem, Reason("write", written == 0 ? ENOSPC : errno));
    }
    at += static_cast<uint64_t>(written);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

}  // namespace horoacc
