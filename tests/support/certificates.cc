#include "tests/support/certificates.h"

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <stdlib.h>

#include <cstdio>
#include <memory>
#include <stdexcept>

namespace treadle::test {
namespace {

template <auto Free>
struct Freed {
  template <class T>
  void operator()(T* held) const {
    Free(held);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<&::EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<&::X509_free>>;
using File = std::unique_ptr<std::FILE, Freed<&std::fclose>>;

void require(bool done) {
  if (!done) throw std::runtime_error("OpenSSL makes no certificate");
}

std::filesystem::path makeFolder() {
  std::string path = (std::filesystem::temp_directory_path() / "treadle-certificates-XXXXXX").string();
  require(::mkdtemp(path.data()) != nullptr);
  return path;
}

Certificate issue(const char* subject, EVP_PKEY* key, const char* issuer, EVP_PKEY* issuerKey) {
  auto name = [](X509_NAME* to, const char* text) {
    require(::X509_NAME_add_entry_by_txt(to, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(text), -1, -1,
                                         0) == 1);
  };
  Certificate made(::X509_new());
  ::X509_set_version(made.get(), 2);
  ::ASN1_INTEGER_set(::X509_get_serialNumber(made.get()), 1);
  ::X509_gmtime_adj(X509_getm_notBefore(made.get()), -60);
  ::X509_gmtime_adj(X509_getm_notAfter(made.get()), 3600);
  ::X509_set_pubkey(made.get(), key);
  name(::X509_get_subject_name(made.get()), subject);
  name(::X509_get_issuer_name(made.get()), issuer);
  if (key == issuerKey) {
    std::unique_ptr<X509_EXTENSION, Freed<&::X509_EXTENSION_free>> isAuthority(
        ::X509V3_EXT_conf_nid(nullptr, nullptr, NID_basic_constraints, "critical,CA:TRUE"));
    require(isAuthority != nullptr && ::X509_add_ext(made.get(), isAuthority.get(), -1) == 1);
  }
  require(::X509_sign(made.get(), issuerKey, ::EVP_sha256()) > 0);
  return made;
}

void write(const std::filesystem::path& path, X509* certificate) {
  File file(std::fopen(path.c_str(), "w"));
  require(file != nullptr && ::PEM_write_X509(file.get(), certificate) == 1);
}

}  // namespace

CertificateFiles::CertificateFiles() : folder_(makeFolder()) {
  Key authorityKey(EVP_EC_gen("P-256")), key(EVP_EC_gen("P-256"));
  require(authorityKey != nullptr && key != nullptr);
  Certificate authority = issue("authority", authorityKey.get(), "authority", authorityKey.get());
  Certificate worker = issue("worker", key.get(), "authority", authorityKey.get());
  write(folder_ / "authority.pem", authority.get());
  write(folder_ / "worker.pem", worker.get());
  File file(std::fopen(privateKey().c_str(), "w"));
  require(file != nullptr && ::PEM_write_PrivateKey(file.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1);
}

CertificateFiles::~CertificateFiles() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

}  // namespace treadle::test
