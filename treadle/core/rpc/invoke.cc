#include "treadle/core/rpc/invoke.h"

#include "treadle/core/base/hash.h"

namespace treadle::rpc {

uint64_t signatureHash(std::string_view signature) { return base::fnv1a(signature); }

}  // namespace treadle::rpc
