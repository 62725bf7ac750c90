#pragma once
// OpenSSL's libcrypto, which seals what goes between hosts. The core is not linked to it: a wheel
// works on machines that have none.
#include <string>

#include "base/result.h"

struct evp_cipher_ctx_st;
struct evp_cipher_st;

namespace horoacc {

/// The functions of libcrypto 1.1 and 3 that AES-256-GCM needs. Loaded for the life of the process.
struct Libcrypto {
  using Context = evp_cipher_ctx_st;
  using Cipher = evp_cipher_st;
  static constexpr int kTagBytes = 16;
  static constexpr int kGetTag = 0x10;  ///< EVP_CTRL_AEAD_GET_TAG, for `control`
  static constexpr int kSetTag = 0x11;  ///< EVP_CTRL_AEAD_SET_TAG

  Context* (*make)() = nullptr;
  void (*free)(Context*) = nullptr;
  const Cipher* (*aes_256_gcm)() = nullptr;
  int (*init)(Context*, const Cipher*, void* engine, const unsigned char* key,
              const unsigned char* nonce, int seals) = nullptr;
  int (*update)(Context*, unsigned char* to, int* length, const unsigned char* from,
                int bytes) = nullptr;
  int (*finish)(Context*, unsigned char* to, int* length) = nullptr;
  int (*control)(Context*, int what, int number, void* pointer) = nullptr;
  const char* (*version)(int) = nullptr;

  /// `path`: a library, as dlopen takes it; empty: the one that the process has, or the system's.
  /// kConfig if there is none, or if it does not compute what the standard says.
  static Result<Libcrypto> Load(const std::string& path);
};

}  // namespace horoacc
