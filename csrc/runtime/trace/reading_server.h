#pragma once
// Where processes of the same user ask how a rank is (`horoaccrun top`, `horoaccrun explain`).
#include <array>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "runtime/job/job.h"
#include "runtime/job/reading.h"
#include "transport/net/fd.h"

namespace horoacc {

/// A few threads, which sleep until somebody asks: one that waits for other hosts' ranks keeps no
/// other look waiting. They need neither the interpreter nor the driver's
/// lock, so a rank that computes for minutes answers too. A question is a line
/// `STACK SECONDS EVENTS [RANK...]` (ReadingScope): without ranks it is for this rank, else for
/// ranks of other hosts, which are asked through the job's own links. Of each rank that answers in
/// time comes a line `RANK BYTES` and so much text, JSON as of the flight record.
class ReadingServer {
 public:
  explicit ReadingServer(Job& job) : job_(job) {}
  ~ReadingServer() { Stop(); }
  ReadingServer(const ReadingServer&) = delete;
  ReadingServer& operator=(const ReadingServer&) = delete;

  /// `listener`: a listening Unix socket.
  Status Start(Fd listener);
  void Stop();
  /// In a forked child: the socket is the parent's.
  void LeaveToParent() const { listener_.LeaveToParent(); }

 private:
  void Run();
  void Answer(int link);
  [[nodiscard]] std::string AnswerTo(std::string_view question);

  Job& job_;
  std::mutex mutex_;  ///< of Start and Stop
  Fd listener_;
  std::array<std::jthread, 3> threads_;
};

}  // namespace horoacc
