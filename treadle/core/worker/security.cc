#include "treadle/core/worker/security.h"

namespace treadle {

Status mayUse(const io::Address& address, const JoinOptions& options, const Launch& launch, const std::string& what) {
  if (address.isUnix() || address.isLoopback()) return {};
  if (options.allowPlaintext || !launch.jobKey.empty() || options.certificatesToUse()) return {};
  return failedPrecondition(what +
                            " is not on this host's loopback, and nothing would keep strangers out there: give all "
                            "workers the same job key (TREADLE_JOB_KEY or TREADLE_JOB_KEY_FILE; `openssl rand -hex 32` "
                            "makes one) or certificates (JoinOptions::certificates), and links are encrypted; or start "
                            "all workers on one host with MASTER_ADDR=127.0.0.1");
}

bool needsNoKey(const io::Address& master, const JoinOptions& options) {
  return !options.allowPlaintext && !master.isLoopback() && options.certificatesToUse().has_value();
}

Result<link::Credentials> credentialsOf(const WorkerInfo& self, std::string jobKey, const JoinOptions& options) {
  link::Credentials credentials{std::move(jobKey), {link::Purpose::kPeer, self}};
  Result<Channels> channels = options.channelsToUse();
  if (!channels.ok()) return std::move(channels).status();
  credentials.unixSockets = channels->unixSockets;
  if (options.allowPlaintext) return credentials;
  Result<TlsUse> use = options.tlsToUse();
  if (!use.ok()) return std::move(use).status();
  io::TlsOptions tls;
  tls.key = credentials.jobKey;
  if (std::optional<Certificates> files = options.certificatesToUse()) {
    if (files->certificate.empty())
      return invalidArgument("JoinOptions::certificates (TREADLE_TLS_CERTIFICATE) names no certificate");
    tls.certificateFile = files->certificate;
    tls.keyFile = files->privateKey;
    tls.authorityFile = files->authority;
  }
  auto context = io::TlsContext::make(std::move(tls));
  if (!context.ok()) return std::move(context).status();
  credentials.tls = std::move(*context);
  credentials.tlsOnLoopback = *use == TlsUse::kAlways;
  return credentials;
}

}  // namespace treadle
