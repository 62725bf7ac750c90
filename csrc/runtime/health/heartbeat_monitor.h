#pragma once
// Which of some peers give no sign of life: stopped, or cut off, though no death is noticed.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace horoacc {

/// Times of a peer's last sign of life, and when they are to be told of. Knows neither ranks nor
/// clocks; one thread at a time.
class HeartbeatMonitor {
 public:
  enum class News : uint8_t {
    kNone,
    kSilent,  ///< told once in a silence
    kBack,    ///< after kSilent
    kHangs,   ///< told at every look
  };
  /// Nanoseconds of silence; 0: never.
  struct Limits {
    int64_t warn_ns = 0;
    int64_t end_ns = 0;
  };

  HeartbeatMonitor(size_t peers, Limits limits);

  /// How often every rank gives a sign of life: one that is late, or looked for late, is no
  /// silence.
  [[nodiscard]] int64_t beat_every_ns() const { return beat_every_ns_; }

  /// A look at all peers begins. While this process itself did not run, nobody was silent.
  void Begin(int64_t now_ns);
  /// From now on the peer is looked at; what it did before does not count.
  void Expect(size_t peer) { peers_[peer] = {.seen_ns = now_ns_}; }
  /// `beat_ns`: when the peer gave its last sign of life. Its clock may differ from ours: what
  /// counts is that the number has changed since the last look.
  [[nodiscard]] News See(size_t peer, int64_t beat_ns);
  [[nodiscard]] int64_t silent_ns(size_t peer) const { return now_ns_ - peers_[peer].seen_ns; }
  /// The peer is later than it should be.
  [[nodiscard]] bool IsLate(size_t peer) const { return silent_ns(peer) > 3 * beat_every_ns_ / 2; }
  /// Some peer is later than it should be: look again soon.
  [[nodiscard]] bool doubtful() const { return doubtful_; }

 private:
  struct Peer {
    int64_t beat_ns = 0;
    int64_t seen_ns = 0;
    bool told = false;
  };

  const Limits limits_;
  const int64_t beat_every_ns_;
  std::vector<Peer> peers_;
  int64_t last_look_ns_ = 0;
  int64_t now_ns_ = 0;
  bool doubtful_ = false;
};

}  // namespace horoacc
