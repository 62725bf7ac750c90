#include "transport/bootstrap/agreed_sealing.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "transport/bootstrap/gather_wire.h"

namespace horoacc {
namespace {

constexpr char kRemedy[] =
    ": install OpenSSL 3 there (libssl3, openssl-libs), name it in setting 'crypto_library', or "
    "choose 'hmac-sha256' in setting 'link_mac', which costs more";

}  // namespace

Result<Sealing> AgreeOnSealing(const Settings& settings, Bootstrap& bootstrap, const Log& log,
                               int64_t deadline_ns) {
  const LinkMac mac = settings.link_mac;
  const bool by_choice = mac == LinkMac::kNone || mac == LinkMac::kHmacSha256;
  if (settings.encrypt && by_choice) {
    return MakeError(ErrorKind::kConfig,
                     "setting 'encrypt' needs AES-GCM: leave out setting 'link_mac'");
  }
  if (mac == LinkMac::kNone) return Sealing{};
  if (mac == LinkMac::kHmacSha256) return Sealing{SealKind::kHmac};
  auto library = Libcrypto::Load(settings.crypto_library);
  const bool demanded = settings.encrypt || mac == LinkMac::kAesGcm;
  const auto answer = [&](const std::vector<std::string>& all) -> Result<std::vector<std::string>> {
    std::vector<bool> have;
    for (const std::string& lacks : all) have.push_back(lacks.empty());
    const auto first = std::ranges::find(have, false) - have.begin();
    const bool none = std::ranges::none_of(have, std::identity());
    const bool some_lack = first < std::ssize(have);
    if (some_lack && (demanded || !none)) {
      return MakeError(ErrorKind::kConfig,
                       "rank(s) " + NamesOfMissing(have) + " cannot seal by AES-GCM what goes " +
                           "between hosts" + (demanded ? "" : ", and others can") + ": " +
                           all[first] + kRemedy,
                       static_cast<int>(first));
    }
    if (none) {
      log.Write(LogLevel::kWarning,
                "what goes between hosts is sealed by HMAC-SHA256, which costs "
                "more than AES-GCM: " +
                    all[0]);
    }
    return std::vector<std::string>(all.size(), none ? "hmac" : "gcm");
  };
  HA_ASSIGN(const std::string agreed,
            bootstrap.Exchange(library.ok() ? std::string() : library.error().message, "", answer,
                               deadline_ns));
  // Over MPI nothing seals this answer.
  if (agreed == "hmac" && !demanded) return Sealing{SealKind::kHmac};
  if (agreed != "gcm" || !library.ok()) {
    return MakeError(ErrorKind::kConfig, "rank 0 answers '" + agreed + "' to what seals by AES-GCM",
                     0);
  }
  return Sealing{settings.encrypt ? SealKind::kGcm : SealKind::kGmac, std::move(library).value()};
}

}  // namespace horoacc
