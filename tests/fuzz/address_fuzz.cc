// Addresses as text, which peers send (io/address.h).

#include "tests/fuzz/fuzzer.h"
#include "treadle/core/io/address.h"

namespace treadle::fuzz::address_fuzz {
namespace {

void feed(Bytes input) {
  std::string text(reinterpret_cast<const char*>(input.data()), input.size());
  Result<io::Address> address = io::Address::parse(text);
  if (!address.ok()) {
    bool named = address.status().code() == Code::kInvalidArgument || address.status().code() == Code::kNotFound;
    return promise(named, "what is no address is told so");
  }
  std::string written = address->toString();
  Result<io::Address> again = io::Address::parse(written);
  promise(again.ok() && again->toString() == written, "an address that is read can be written and read again");
  promise(again->family() == address->family() && again->port() == address->port(), "and is the same");
  promise(again->isLoopback() == address->isLoopback() && again->isAny() == address->isAny(),
          "who may listen there does not change");
}

Inputs seeds() {
  return {bytesOf("tcp://127.0.0.1:4000"),
          bytesOf("tcp://[::1]:4000"),
          bytesOf("tcp://0.0.0.0:0"),
          bytesOf("tcp://[fe80::1%lo]:9"),
          bytesOf("unix:treadle-1-2"),
          bytesOf("unix:"),
          bytesOf("tcp://host:1"),
          bytesOf("tcp://127.1:65536"),
          bytesOf("tcp://:1"),
          bytesOf("http://x")};
}

const Fuzzer kAddress("address", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::address_fuzz
