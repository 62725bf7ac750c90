#pragma once
// Where this process's interpreter is, asked without its lock: it may hold it for minutes, or
// sleep.
#include <atomic>
#include <mutex>
#include <string>

namespace horoacc {

/// The binding of an interpreter registers a signal whose handler writes the stacks of all threads
/// to a file, as CPython's faulthandler does. The signal goes to the asking thread: no other is
/// disturbed.
class StackSource {
 public:
  /// The descriptors stay the caller's, open until this is called again; -1: none. `asked_fd` is a
  /// file that grows when somebody asks for a record of the flight by a signal of his own.
  void Set(int signal, int fd, int asked_fd);
  /// What the handler writes: sections "Thread ...:" or "Current thread ...:" with lines
  /// `  File "x.py", line 7 in f`, the main thread's last. "": there is no interpreter.
  [[nodiscard]] std::string Take();
  /// Has somebody asked since the last call?
  [[nodiscard]] bool WasAsked();

 private:
  std::mutex mutex_;
  int signal_ = -1;
  int fd_ = -1;
  std::atomic<int> asked_fd_{-1};
};

/// The main thread of such a text in a line: "load (data.py:20) < train (train.py:7)".
[[nodiscard]] std::string MainStackOf(const std::string& text);

}  // namespace horoacc
