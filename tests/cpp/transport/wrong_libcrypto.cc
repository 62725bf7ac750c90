// A library with libcrypto's names that computes nothing, and says that all went well.
#pragma GCC visibility push(default)
extern "C" {
void* EVP_CIPHER_CTX_new() {
  static int context;
  return &context;
}
void EVP_CIPHER_CTX_free(void*) {}
const void* EVP_aes_256_gcm() { return EVP_CIPHER_CTX_new(); }
int EVP_CipherInit_ex(void*, const void*, void*, const unsigned char*, const unsigned char*, int) {
  return 1;
}
int EVP_CipherUpdate(void*, unsigned char*, int*, const unsigned char*, int) { return 1; }
int EVP_CipherFinal_ex(void*, unsigned char*, int*) { return 1; }
int EVP_CIPHER_CTX_ctrl(void*, int, int, void*) { return 1; }
const char* OpenSSL_version(int) { return "a wrong libcrypto"; }
}
