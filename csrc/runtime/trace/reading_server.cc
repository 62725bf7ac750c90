#include "runtime/trace/reading_server.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace horoacc {
namespace {

constexpr timeval kLinkLimit{1, 0};  // for a question to come, and for each part of the answer
constexpr int64_t kAnswerLimit = kSecond;
constexpr int64_t kStackLimit = 3 * kSecond;  // StackSource::Take
constexpr std::chrono::milliseconds kLookAgain(2);
constexpr std::chrono::milliseconds kNoDescriptor(100);
constexpr size_t kLongestQuestion = 1 << 20;

bool IsOfThisUser(int link) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(link, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

// Without its line break; "": none came in time.
std::string ReadLine(int link) {
  std::string line;
  char part[4096];
  while (line.size() < kLongestQuestion) {
    const ssize_t bytes = ::recv(link, part, sizeof part, 0);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) break;
    line.append(part, static_cast<size_t>(bytes));
    if (line.back() != '\n') continue;
    line.pop_back();
    return line;
  }
  return "";
}

void SendAll(int link, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::send(link, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return;
    text.remove_prefix(static_cast<size_t>(sent));
  }
}

std::string Framed(int rank, const std::string& text) {
  return std::to_string(rank) + ' ' + std::to_string(text.size()) + '\n' + text;
}

}  // namespace

Status ReadingServer::Start(Fd listener) {
  std::lock_guard lock(mutex_);
  if (listener_) return MakeError(ErrorKind::kInvalid, "readings are given already");
  listener_ = std::move(listener);
  try {
    for (std::jthread& thread : threads_) thread = std::jthread([this] { Run(); });
  } catch (const std::system_error& refused) {
    if (threads_[0].joinable()) return {};  // fewer will do
    listener_ = Fd();
    return MakeError(ErrorKind::kSystem, std::string("no thread for readings: ") + refused.what());
  }
  return {};
}

void ReadingServer::Stop() {
  std::lock_guard lock(mutex_);
  if (!listener_) return;
  ::shutdown(listener_.get(), SHUT_RDWR);
  for (std::jthread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  listener_ = Fd();
}

void ReadingServer::Run() {
  pthread_setname_np(pthread_self(), "horoacc-look");
  for (;;) {
    const Fd link(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (link) {
      try {
        Answer(link.get());
      } catch (const std::exception&) {  // memory is short: whoever asks will ask again
        continue;
      }
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      std::this_thread::sleep_for(kNoDescriptor);
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return;  // Stop() has shut it down
    }
  }
}

void ReadingServer::Answer(int link) {
  if (!IsOfThisUser(link)) return;
  ::setsockopt(link, SOL_SOCKET, SO_RCVTIMEO, &kLinkLimit, sizeof kLinkLimit);
  ::setsockopt(link, SOL_SOCKET, SO_SNDTIMEO, &kLinkLimit, sizeof kLinkLimit);
  if (const std::string question = ReadLine(link); !question.empty())
    SendAll(link, AnswerTo(question));
}

std::string ReadingServer::AnswerTo(std::string_view question) {
  std::istringstream words{std::string(question)};
  ReadingScope scope;
  if (!(words >> scope.stack >> scope.seconds >> scope.events)) return "";
  std::vector<int> ranks;
  for (int rank = 0; words >> rank;) {
    const bool elsewhere = rank >= 0 && rank < job_.placement.size && job_.multi_host &&
                           job_.LocalOf(rank) == job_.share.ranks.size();
    if (elsewhere) ranks.push_back(rank);
  }
  if (!words.eof()) return "";
  if (ranks.empty()) return Framed(job_.rank(), job_.reading(scope));
  if (job_.aborted()) return "";  // the links are down
  RankQuestions& questions = job_.multi_host->channel().questions();
  const std::vector<int> asked = ranks;
  for (const int rank : asked) questions.Ask(rank, RankQuestion::kReading, scope);
  const int64_t deadline = NowNs() + (scope.stack ? kStackLimit : kAnswerLimit);
  std::string text;
  const auto goes_on = [this] {
    return !job_.aborted() && !job_.stopping.load(std::memory_order_acquire);
  };
  while (!ranks.empty() && NowNs() < deadline && goes_on()) {
    std::erase_if(ranks, [&](int rank) {
      const std::optional<std::string> reading = questions.AnswerOf(rank, RankQuestion::kReading);
      if (reading && !reading->empty()) text += Framed(rank, *reading);
      return reading.has_value();
    });
    if (!ranks.empty()) std::this_thread::sleep_for(kLookAgain);
  }
  for (const int rank : asked) questions.Forget(rank, RankQuestion::kReading);
  return text;
}

}  // namespace horoacc
