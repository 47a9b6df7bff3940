#pragma once
// An authority and a certificate of it, as files that go with the object: made by OpenSSL, good for an hour.

#include <filesystem>
#include <string>

namespace treadle::test {

class CertificateFiles {
 public:
  CertificateFiles();
  ~CertificateFiles();
  CertificateFiles(const CertificateFiles&) = delete;
  CertificateFiles& operator=(const CertificateFiles&) = delete;

  std::string certificate() const { return folder_ / "worker.pem"; }
  std::string privateKey() const { return folder_ / "worker.key"; }
  std::string authority() const { return folder_ / "authority.pem"; }

 private:
  const std::filesystem::path folder_;
};

}  // namespace treadle::test
