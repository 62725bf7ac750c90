// A job over MPI, to be started by an mpirun (so it is no *_test.cc):
//
//   mpirun -np 3 mpi_links_check <folder of the plug-ins> <prefix of MPI> [mode]
//
// Modes: "ours" (default): HoroACC initialises and finalises MPI; "theirs": this program does, as
// mpi4py would; "funneled": it asks for too few threads; "twice": two sessions, one after the
// other; "missing": the last rank stays away from a gather; "abandon": everybody gives MPI up;
// "data": the data links.
// Prints "rank R of N: good" and returns 0, or says what was wrong and returns 1.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#define HOROACC_CHECK_WITHOUT_MAIN
#include "base/clock.h"
#include "support/data_battery.h"
#include "transport/data/tagged/tagged_links.h"
#include "transport/mpi/mpi_links.h"

using namespace horoacc;

namespace {

#define REQUIRE(condition)                                                 \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::fflush(nullptr);                                                \
      std::_Exit(1);                                                       \
    }                                                                      \
  } while (false)

int64_t Soon() { return NowNs() + 60 * kSecond; }

std::string BlobOf(int rank, int round) {
  const size_t length = round % 5 == 4 ? 1 << 20 : static_cast<size_t>(rank * 7 + round);
  return std::string(length, static_cast<char>('a' + rank)) + std::to_string(round);
}

void CheckBootstrap(const std::shared_ptr<MpiSession>& session) {
  const auto bootstrap = MakeMpiBootstrap(session);
  REQUIRE(bootstrap->rank() == session->rank() && bootstrap->size() == session->size());
  for (int round = 0; round < 30; ++round) {
    const auto blobs = bootstrap->AllGather(BlobOf(session->rank(), round), Soon());
    if (!blobs.ok()) std::fprintf(stderr, "%s\n", blobs.error().message.c_str());
    REQUIRE(blobs.ok());
    for (int rank = 0; rank < session->size(); ++rank) {
      REQUIRE(blobs.value()[rank] == BlobOf(rank, round));
    }
  }
}

std::vector<std::byte> Message(int from, int to, int index) {
  // Short and long ones mixed: the long ones take MPI's rendezvous protocol.
  const size_t length = index % 10 == 9 ? 300000 : static_cast<size_t>(index % 50);
  std::vector<std::byte> bytes(length + 1);
  for (size_t at = 0; at < bytes.size(); ++at) {
    bytes[at] = static_cast<std::byte>(from * 50 + to * 11 + index + static_cast<int>(at));
  }
  return bytes;
}

/// Everybody sends to everybody and checks order and contents. Runs in a thread of its own:
/// the thread that drives the links is not the one that initialised MPI.
void CheckLinks(const std::shared_ptr<MpiSession>& session) {
  constexpr int kCount = 200;
  const int rank = session->rank();
  const int size = session->size();
  const auto links = MakeMpiControlLinks(session);
  REQUIRE(links->WaitFd() == -1);
  REQUIRE(!links->Send(rank, {}).ok());
  REQUIRE(!links->Send(size, {}).ok());
  std::vector<int> next(size, 0);
  int received = 0;
  int sent = 0;
  const int64_t deadline = Soon();
  while (received < kCount * (size - 1) || sent < kCount) {
    REQUIRE(NowNs() < deadline);
    if (sent < kCount) {
      for (int peer = 0; peer < size; ++peer) {
        if (peer != rank) REQUIRE(links->Send(peer, Message(rank, peer, sent)).ok());
      }
      ++sent;
    }
    auto message = links->Receive();
    REQUIRE(message.ok());
    if (!message.value()) continue;
    const int from = message.value()->source;
    REQUIRE(message.value()->bytes == Message(from, rank, next[from]));
    ++next[from];
    ++received;
  }
  REQUIRE(session->Drain(Soon()));
  REQUIRE(links->messages_sent() == static_cast<uint64_t>(kCount * (size - 1)));
  REQUIRE(std::string(links->kind()) == "mpi");
}

/// What all data links do, and an abort.
void CheckData(const std::shared_ptr<MpiSession>& session) {
  const auto bootstrap = MakeMpiBootstrap(session);
  const int rank = session->rank();
  const auto links = MakeMpiDataLinks(session, 3);
  REQUIRE(links->MustPoll() && links->WaitFd() == -1 && std::string(links->kind()) == "mpi");
  const auto meet = [&] { REQUIRE(bootstrap->AllGather("", Soon()).ok()); };
  testing::RunBattery(*links, rank, session->size(), meet);
  const auto spec = testing::Spec(rank == 0 ? 1 : 0, 60);
  const auto receiver = rank < 2 ? testing::MustReceive(*links, spec) : nullptr;
  std::vector<std::byte> place(100000);
  const std::span<std::byte> piece(place);
  if (rank < 2) REQUIRE(receiver->Expect(place.size(), {&piece, 1}).ok());
  meet();
  if (rank == 0) links->Abort(MakeError(ErrorKind::kTimeout, "rank 2 is late", 2));
  if (rank == 1) {
    const auto error = testing::Drive(*links, [] { return false; });
    REQUIRE(error && error->kind == ErrorKind::kTimeout && error->culprit == 2);
    REQUIRE(error->message.find("rank 0 gave up: rank 2 is late") != std::string::npos);
  }
  meet();
}

void CheckMissing(const std::shared_ptr<MpiSession>& session) {
  const auto bootstrap = MakeMpiBootstrap(session);
  const int last = session->size() - 1;
  if (session->rank() == last) {
    std::this_thread::sleep_for(std::chrono::seconds(5));
    return;
  }
  const auto blobs = bootstrap->AllGather("here", NowNs() + 2 * kSecond);
  REQUIRE(!blobs.ok());
  REQUIRE(blobs.error().kind == ErrorKind::kTimeout);
  REQUIRE(blobs.error().culprit == last);
  REQUIRE(blobs.error().message.find("rank(s) " + std::to_string(last)) != std::string::npos);
}

/// Initialises or finalises MPI the way another library in the process would.
void CallMpi(const MpiChoice& choice, const char* name, int threads) {
  void* library = nullptr;
  for (const std::string& each : choice.libraries) {
    if ((library = ::dlopen(each.c_str(), RTLD_NOW | RTLD_GLOBAL)) != nullptr) break;
  }
  REQUIRE(library != nullptr);
  void* symbol = ::dlsym(library, name);
  REQUIRE(symbol != nullptr);
  if (threads >= 0) {
    int provided = 0;
    using InitThread = int (*)(int*, char***, int, int*);
    REQUIRE(reinterpret_cast<InitThread>(symbol)(nullptr, nullptr, threads, &provided) == 0);
    REQUIRE(provided == threads);
  } else {
    REQUIRE(reinterpret_cast<int (*)()>(symbol)() == 0);
  }
}

}  // namespace

int main(int argc, char** argv) {
  REQUIRE(argc >= 3);
  const std::string mode = argc > 3 ? argv[3] : "ours";
  const char* setting = std::getenv("HOROACC_MPI_LIBRARY");
  const char* launcher = std::getenv("OMPI_COMM_WORLD_RANK") != nullptr ? "openmpi" : "mpich";
  auto chosen = ChooseMpi(LookAround(setting == nullptr ? "" : setting, argv[2], launcher));
  if (!chosen.ok()) std::fprintf(stderr, "%s\n", chosen.error().message.c_str());
  REQUIRE(chosen.ok());
  const MpiOptions options{argv[1], chosen.value(), Soon()};
  constexpr int kFunneled = 1;
  constexpr int kMultiple = 3;
  const bool theirs = mode == "theirs" || mode == "funneled";
  if (theirs) CallMpi(options.choice, "MPI_Init_thread", mode == "theirs" ? kMultiple : kFunneled);
  if (theirs) {
    const auto again = ChooseMpi(LookAround("", "", launcher));
    REQUIRE(again.ok() && again.value().flavour == options.choice.flavour);
    REQUIRE(again.value().reason.find("loaded already") != std::string::npos);
  }

  auto opened = MpiSession::Open(options);
  if (mode == "funneled") {
    REQUIRE(!opened.ok());
    REQUIRE(opened.error().kind == ErrorKind::kConfig);
    REQUIRE(opened.error().message.find("MPI_THREAD_FUNNELED") != std::string::npos);
    std::printf("good: %s\n", opened.error().message.c_str());
    std::fflush(nullptr);
    CallMpi(options.choice, "MPI_Finalize", -1);
    return 0;
  }
  if (!opened.ok()) std::fprintf(stderr, "%s\n", opened.error().message.c_str());
  REQUIRE(opened.ok());
  std::shared_ptr<MpiSession> session = std::move(opened).value();
  const int rank = session->rank();
  const int size = session->size();
  if (mode == "missing") {
    CheckMissing(session);
  } else if (mode == "data") {
    CheckData(session);
  } else {
    CheckBootstrap(session);
    std::jthread([&session] { CheckLinks(session); }).join();
    CheckBootstrap(session);
  }
  if (mode == "twice") {
    session.reset();
    auto second = MpiSession::Open(options);
    REQUIRE(second.ok());
    session = std::move(second).value();
    CheckBootstrap(session);
  }
  std::printf("rank %d of %d: good (%s)\n", rank, size, session->library_version().c_str());
  std::fflush(nullptr);
  if (mode == "abandon") {
    session->Abandon();
    REQUIRE(!session->Send(HA_MPI_CONTROL, 0, {}).ok());
    session.reset();
    std::_Exit(0);
  }
  REQUIRE(session->Finalize().ok());
  if (theirs) CallMpi(options.choice, "MPI_Finalize", -1);
  return 0;
}
