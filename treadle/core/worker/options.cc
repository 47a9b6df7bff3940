#include "treadle/core/worker/options.h"

#include <algorithm>

#include "treadle/core/base/environment.h"
#include "treadle/core/link/handshake.h"

namespace treadle {
namespace {

bool mayStandInName(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("_.:-").find(c) != std::string_view::npos;
}

Status checkAnnounced(const std::optional<std::string>& text) {
  if (!text) return {};
  Result<io::Address> address = io::Address::parse(*text);
  if (!address.ok()) return address.status().withContext("announceAddress");
  if (address->isUnix() || address->isAny() || address->port() == 0)
    return invalidArgument("announceAddress is " + *text + "; it must be one TCP address with its port");
  return {};
}

}  // namespace

Status JoinOptions::validate() const {
  if (name.size() > link::kNameBytes || !std::all_of(name.begin(), name.end(), mayStandInName))
    return invalidArgument("'" + name +
                           "' cannot be a worker's name: use 1 to 127 of the characters A-Z a-z 0-9 _ . : -");
  for (auto [what, limit] : {std::pair("rpcTimeout", rpcTimeout), std::pair("joinTimeout", joinTimeout),
                             std::pair("heartbeatTimeout", heartbeatTimeout)})
    if (limit <= Duration::zero())
      return invalidArgument(std::string(what) + " is " + toText(limit) + "; it must be positive");
  if (heartbeatTimeout < std::chrono::milliseconds(100))
    return invalidArgument("heartbeatTimeout is " + toText(heartbeatTimeout) +
                           "; under 100 ms living peers would be given up");
  if (heartbeatTimeout > std::chrono::hours(24))
    return invalidArgument("heartbeatTimeout is " + toText(heartbeatTimeout) +
                           "; it must be at most 24 h, or no loss would be noticed");
  if (messageLimits.bufferBytes > wire::kMostBufferBytes)
    return invalidArgument("messageLimits.bufferBytes is " + std::to_string(messageLimits.bufferBytes) +
                           "; it must be less than 2^48");
  if (maxInFlightBytes < 1 || maxInFlightBytes > uint64_t{1} << 50)
    return invalidArgument("maxInFlightBytes is " + std::to_string(maxInFlightBytes) +
                           "; it must be between 1 and 2^50");
  if (referenceLimit < 1 || referenceLimit > uint64_t{1} << 50)
    return invalidArgument("referenceLimit is " + std::to_string(referenceLimit) + "; it must be between 1 and 2^50");
  for (auto [what, time] : {std::pair("spinTimeout", spinTimeout), std::pair("serverSpinTimeout", serverSpinTimeout)})
    if (time < Duration::zero() || time > std::chrono::seconds(1))
      return invalidArgument(std::string(what) + " is " + toText(time) + "; it must be between 0 and 1 s");
  if (maxConcurrentHandlers < 0 || maxBlockedHandlers < 1)
    return invalidArgument("maxConcurrentHandlers must be >= 0 and maxBlockedHandlers >= 1");
  TREADLE_RETURN_IF_ERROR(checkAnnounced(announceAddress));
  if (launch) TREADLE_RETURN_IF_ERROR(launch->validate());
  Result<Channels> usable = channelsToUse();
  if (!usable.ok()) return std::move(usable).status();
  if (!usable->unixSockets && !usable->tcp)
    return invalidArgument("channels has neither unixSockets nor tcp: no worker could be reached");
  Result<TlsUse> encrypted = tlsToUse();
  if (!encrypted.ok()) return std::move(encrypted).status();
  if (allowPlaintext && certificatesToUse())
    return invalidArgument(
        "allowPlaintext turns TLS off, so certificates (JoinOptions::certificates, TREADLE_TLS_CERTIFICATE) have no "
        "effect; set only one of them");
  if (allowPlaintext && *encrypted == TlsUse::kAlways)
    return invalidArgument("allowPlaintext turns TLS off and tls (TREADLE_TLS) requires it; set only one of them");
  return {};
}

Result<TlsUse> JoinOptions::tlsToUse() const {
  if (tls) return *tls;
  const std::string text = base::environment("TREADLE_TLS").value_or("auto");
  if (text == "always") return TlsUse::kAlways;
  if (text == "auto") return TlsUse::kBeyondLoopback;
  return invalidArgument("TREADLE_TLS is '" + text + "', not always or auto");
}

std::optional<Certificates> JoinOptions::certificatesToUse() const {
  if (certificates) return certificates;
  Certificates files{base::environment("TREADLE_TLS_CERTIFICATE").value_or(""),
                     base::environment("TREADLE_TLS_PRIVATE_KEY").value_or(""),
                     base::environment("TREADLE_TLS_AUTHORITY").value_or("")};
  const bool any = !files.certificate.empty() || !files.privateKey.empty() || !files.authority.empty();
  return any ? std::optional(std::move(files)) : std::nullopt;
}

Result<Channels> JoinOptions::channelsToUse() const {
  if (channels) return *channels;
  std::optional<std::string> text = base::environment("TREADLE_CHANNELS");
  if (!text) return Channels();
  Result<Channels> parsed = Channels::parse(*text);
  return parsed.ok() ? parsed : parsed.status().withContext("TREADLE_CHANNELS");
}

}  // namespace treadle
