#include "transport/net/libcrypto.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>

namespace horoacc {
namespace {

constexpr uint64_t kNoAtExit = 0x00080000;  // OPENSSL_INIT_NO_ATEXIT

// Test case 16 of the GCM specification (McGrew and Viega).
constexpr unsigned char kKey[] = {
    0xfe, 0xff, 0xe9, 0x92, 0x86, 0x65, 0x73, 0x1c, 0x6d, 0x6a, 0x8f, 0x94, 0x67, 0x30, 0x83, 0x08,
    0xfe, 0xff, 0xe9, 0x92, 0x86, 0x65, 0x73, 0x1c, 0x6d, 0x6a, 0x8f, 0x94, 0x67, 0x30, 0x83, 0x08,
};
constexpr unsigned char kTrialNonce[] = {
    0xca, 0xfe, 0xba, 0xbe, 0xfa, 0xce, 0xdb, 0xad, 0xde, 0xca, 0xf8, 0x88,
};
constexpr unsigned char kClear[] = {
    0xfe, 0xed, 0xfa, 0xce, 0xde, 0xad, 0xbe, 0xef, 0xfe, 0xed,
    0xfa, 0xce, 0xde, 0xad, 0xbe, 0xef, 0xab, 0xad, 0xda, 0xd2,
};
constexpr unsigned char kPlain[] = {
    0xd9, 0x31, 0x32, 0x25, 0xf8, 0x84, 0x06, 0xe5, 0xa5, 0x59, 0x09, 0xc5, 0xaf, 0xf5, 0x26,
    0x9a, 0x86, 0xa7, 0xa9, 0x53, 0x15, 0x34, 0xf7, 0xda, 0x2e, 0x4c, 0x30, 0x3d, 0x8a, 0x31,
    0x8a, 0x72, 0x1c, 0x3c, 0x0c, 0x95, 0x95, 0x68, 0x09, 0x53, 0x2f, 0xcf, 0x0e, 0x24, 0x49,
    0xa6, 0xb5, 0x25, 0xb1, 0x6a, 0xed, 0xf5, 0xaa, 0x0d, 0xe6, 0x57, 0xba, 0x63, 0x7b, 0x39,
};
constexpr unsigned char kTag[] = {
    0x76, 0xfc, 0x6e, 0xce, 0x0f, 0x4e, 0x17, 0x68, 0xcd, 0xdf, 0x88, 0x53, 0xbb, 0x2d, 0x55, 0x1b,
};

bool ComputesTheStandards(const Libcrypto& library) {
  const std::unique_ptr<Libcrypto::Context, void (*)(Libcrypto::Context*)> context(library.make(),
                                                                                   library.free);
  unsigned char hidden[sizeof(kPlain)];
  unsigned char tag[Libcrypto::kTagBytes] = {};
  int length = 0;
  const auto update = [&](unsigned char* to, const unsigned char* from, size_t bytes) {
    return library.update(context.get(), to, &length, from, static_cast<int>(bytes)) == 1;
  };
  return context &&
         library.init(context.get(), library.aes_256_gcm(), nullptr, kKey, kTrialNonce, 1) == 1 &&
         update(nullptr, kClear, sizeof(kClear)) && update(hidden, kPlain, sizeof(kPlain)) &&
         library.finish(context.get(), hidden, &length) == 1 &&
         library.control(context.get(), Libcrypto::kGetTag, sizeof(tag), tag) == 1 &&
         std::memcmp(tag, kTag, sizeof(tag)) == 0;
}

template <typename Function>
bool Find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  return function != nullptr;
}

Result<Libcrypto> FunctionsOf(void* library, const std::string& name) {
  Libcrypto found;
  const char* missing = nullptr;
  const auto find = [&](const char* symbol, auto*& function) {
    if (!Find(library, symbol, function) && missing == nullptr) missing = symbol;
  };
  find("EVP_CIPHER_CTX_new", found.make);
  find("EVP_CIPHER_CTX_free", found.free);
  find("EVP_aes_256_gcm", found.aes_256_gcm);
  find("EVP_CipherInit_ex", found.init);
  find("EVP_CipherUpdate", found.update);
  find("EVP_CipherFinal_ex", found.finish);
  find("EVP_CIPHER_CTX_ctrl", found.control);
  find("OpenSSL_version", found.version);
  if (missing != nullptr)
    return MakeError(ErrorKind::kConfig, name + " is no libcrypto: it has no " + missing);
  // A thread may seal while the process ends.
  int (*start)(uint64_t, const void*) = nullptr;
  if (Find(library, "OPENSSL_init_crypto", start)) start(kNoAtExit, nullptr);
  if (ComputesTheStandards(found)) return found;
  return MakeError(ErrorKind::kConfig,
                   name + " (" + found.version(0) + ") does not compute AES-256-GCM");
}

}  // namespace

Result<Libcrypto> Libcrypto::Load(const std::string& path) {
  if (!path.empty()) {
    void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return FunctionsOf(library, path);
    return MakeError(ErrorKind::kConfig, std::string("no libcrypto: ") + ::dlerror());
  }
  // Python's may be another one than the system's: two versions in one process are avoided.
  for (const int how : {RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL}) {
    for (const char* const name : {"libcrypto.so.3", "libcrypto.so.1.1"}) {
      void* const library = ::dlopen(name, how);
      if (library != nullptr) return FunctionsOf(library, name);
    }
  }
  return MakeError(ErrorKind::kConfig, "there is no libcrypto of OpenSSL 3 or 1.1");
}

}  // namespace horoacc
