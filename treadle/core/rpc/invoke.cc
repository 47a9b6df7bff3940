#include "treadle/core/rpc/invoke.h"

namespace treadle::rpc {

uint64_t signatureHash(std::string_view signature) {
  uint64_t hash = 0xcbf29ce484222325;
  for (char c : signature) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace treadle::rpc
