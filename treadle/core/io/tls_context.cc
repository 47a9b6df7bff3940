#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/ssl.h>

#include <array>

#include "treadle/core/io/tls.h"

namespace treadle::io {
namespace {

constexpr std::array<unsigned char, 9> kIdentity = {'t', 'r', 'e', 'a', 'd', 'l', 'e', ' ', '1'};
// A key that is given belongs to one hash, and so do these two. The first has instructions on most processors.
constexpr const char* kSuites = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";
constexpr std::array<unsigned char, 2> kFirstSuite = {0x13, 0x01};
constexpr size_t kSecretBytes = 32;
constexpr long kMostCertificateBytes = 32L << 10;  // of a peer's chain

// HKDF (RFC 5869), so that what TLS uses tells nothing of the key, which the handshake of links proves as well.
Result<std::vector<unsigned char>> derive(const std::string& key) {
  std::string hash = "SHA256", label = "treadle tls 1.3 external psk";
  std::vector<unsigned char> secret(kSecretBytes);
  EVP_KDF* kdf = ::EVP_KDF_fetch(nullptr, "HKDF", nullptr);
  EVP_KDF_CTX* context = kdf == nullptr ? nullptr : ::EVP_KDF_CTX_new(kdf);
  const std::array parameters = {
      ::OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, hash.data(), 0),
      ::OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, const_cast<char*>(key.data()), key.size()),
      ::OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, label.data(), label.size()),
      ::OSSL_PARAM_construct_end()};
  bool done = context != nullptr && ::EVP_KDF_derive(context, secret.data(), secret.size(), parameters.data()) == 1;
  ::EVP_KDF_CTX_free(context);
  ::EVP_KDF_free(kdf);
  if (!done) return internalError("OpenSSL has no HKDF with SHA-256");
  return secret;
}

Status unusable(const std::string& what, const std::string& file, const std::string& hint = "") {
  const char* reason = ::ERR_reason_error_string(::ERR_peek_last_error());
  return invalidArgument("the " + what + " " + file +
                         " cannot be used: " + (reason == nullptr ? "it is not there or not of PEM" : reason) + hint);
}

}  // namespace

Result<std::shared_ptr<const TlsContext>> TlsContext::make(TlsOptions options) {
  std::shared_ptr<TlsContext> context(new TlsContext(std::move(options)));  // NOLINT: private constructor
  TREADLE_RETURN_IF_ERROR(context->begin());
  return std::shared_ptr<const TlsContext>(std::move(context));
}

TlsContext::~TlsContext() { ::SSL_CTX_free(context_); }

// Sessions are neither kept nor given out as tickets: each connection proves itself anew, and a lane's acceptor never
// writes.
Status TlsContext::begin() {
  // A process that exits while threads of it are in OpenSSL must not find that gone.
  [[maybe_unused]] static const int begun = ::OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, nullptr);
  ::ERR_clear_error();
  context_ = ::SSL_CTX_new(::TLS_method());
  if (context_ == nullptr || ::SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION) != 1 ||
      ::SSL_CTX_set_ciphersuites(context_, kSuites) != 1)
    return internalError("OpenSSL has no TLS 1.3");
  (void)::SSL_CTX_set_session_cache_mode(context_, SSL_SESS_CACHE_OFF);
  (void)::SSL_CTX_set_num_tickets(context_, 0);
  (void)::SSL_CTX_set_options(context_, SSL_OP_NO_TICKET);
  (void)SSL_CTX_set_app_data(context_, this);
  return options_.hasCertificates() ? useCertificates() : useKey();
}

Status TlsContext::useKey() {
  if (options_.key.empty()) return invalidArgument("TLS needs a key or certificates");
  Result<std::vector<unsigned char>> secret = derive(options_.key);
  if (!secret.ok()) return std::move(secret).status();
  secret_ = std::move(*secret);
  // To OpenSSL a key is a session that is resumed, and one that is verified belongs to a context.
  (void)::SSL_CTX_set_session_id_context(context_, kIdentity.data(), kIdentity.size());
  // No certificate proves anything here: without the key the handshake ends (`shakeHands` makes sure of it).
  ::SSL_CTX_set_verify(context_, SSL_VERIFY_PEER, nullptr);
  ::SSL_CTX_set_psk_find_session_callback(context_, &TlsContext::findSession);
  ::SSL_CTX_set_psk_use_session_callback(
      context_, [](SSL* ssl, const EVP_MD* hash, const unsigned char** identity, size_t* size, SSL_SESSION** session) {
        return useSession(ssl, hash, identity, size, session);
      });
  return {};
}

Status TlsContext::useCertificates() {
  if (options_.keyFile.empty() || options_.authorityFile.empty())
    return invalidArgument("a certificate needs its private key and the authority's certificate beside it");
  if (::SSL_CTX_use_certificate_chain_file(context_, options_.certificateFile.c_str()) != 1)
    return unusable("certificate", options_.certificateFile);
  ::SSL_CTX_set_default_passwd_cb(context_, [](char*, int, int, void*) { return -1; });  // it would ask the terminal
  if (::SSL_CTX_use_PrivateKey_file(context_, options_.keyFile.c_str(), SSL_FILETYPE_PEM) != 1 ||
      ::SSL_CTX_check_private_key(context_) != 1)
    return unusable("private key", options_.keyFile, "; it must fit the certificate and have no pass phrase");
  if (::SSL_CTX_load_verify_locations(context_, options_.authorityFile.c_str(), nullptr) != 1)
    return unusable("authority's certificate", options_.authorityFile);
  ::SSL_CTX_set_max_cert_list(context_, kMostCertificateBytes);
  ::SSL_CTX_set_verify(context_, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return {};
}

SSL_SESSION* TlsContext::sessionOf(SSL* ssl) {
  const auto& context = *static_cast<const TlsContext*>(SSL_CTX_get_app_data(::SSL_get_SSL_CTX(ssl)));
  const SSL_CIPHER* suite = ::SSL_CIPHER_find(ssl, kFirstSuite.data());
  SSL_SESSION* session = ::SSL_SESSION_new();
  bool made = session != nullptr && suite != nullptr &&
              ::SSL_SESSION_set1_master_key(session, context.secret_.data(), context.secret_.size()) == 1 &&
              ::SSL_SESSION_set_cipher(session, suite) == 1 &&
              ::SSL_SESSION_set1_id_context(session, kIdentity.data(), kIdentity.size()) == 1 &&
              ::SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
  if (made) return session;
  ::SSL_SESSION_free(session);
  return nullptr;
}

int TlsContext::findSession(SSL* ssl, const unsigned char* identity, size_t size, SSL_SESSION** session) {
  *session = std::equal(identity, identity + size, kIdentity.begin(), kIdentity.end()) ? sessionOf(ssl) : nullptr;
  return 1;
}

int TlsContext::useSession(SSL* ssl, const void*, const unsigned char** identity, size_t* size, SSL_SESSION** session) {
  *session = sessionOf(ssl);
  *identity = kIdentity.data();
  *size = kIdentity.size();
  return *session != nullptr ? 1 : 0;
}

}  // namespace treadle::io
