#pragma once
// Where this process's interpreter is, also while it holds its lock for minutes, or sleeps.
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

namespace horoacc {

/// The binding of an interpreter answers in two ways. A thread of the interpreter's own, which
/// holds its lock as it looks, so that no stack changes under it. And, for an interpreter whose
/// lock is not to be had, a signal whose handler writes the stacks without it, as CPython's
/// faulthandler does; a copy of the process raises it, so that stacks that change harm nobody.
class StackSource {
 public:
  /// How often somebody has asked for a record of the flight by a signal of his own.
  using Requests = uint32_t (*)();

  /// The descriptors stay the caller's, open until this is called again; -1: none. `talk` is one
  /// end of a pair of packet sockets: each packet that it gets is a question, and comes back from
  /// the other end with the answer behind it.
  void Set(int talk, int signal, int fd, Requests requests);
  /// Sections "Thread ...:" with lines `  File "x.py", line 7 in f`, the main thread's last. "":
  /// there is no interpreter. Takes 0.3 s more if the interpreter's lock is held, and 2 s at most.
  [[nodiscard]] std::string Take();
  /// Has somebody asked since the last call?
  [[nodiscard]] bool WasAsked();

 private:
  bool AskInterpreter();
  [[nodiscard]] std::optional<std::string> HearInterpreter(int64_t deadline_ns) const;
  std::string AskHandler() const;

  std::mutex mutex_;
  int talk_ = -1;
  uint32_t questions_ = 0;
  int signal_ = -1;
  int fd_ = -1;
  std::atomic<Requests> requests_{nullptr};
  std::atomic<uint32_t> heard_{0};
};

/// The main thread of such a text in a line: "load (data.py:20) < train (train.py:7)".
[[nodiscard]] std::string MainStackOf(const std::string& text);

}  // namespace horoacc
