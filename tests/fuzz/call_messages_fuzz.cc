// The headers of requests, fetches, answers, cancellations and notices (rpc/messages.h).

#include "tests/fuzz/fuzzer.h"
#include "treadle/core/rpc/messages.h"

namespace treadle::fuzz::call_messages_fuzz {
namespace {

constexpr int kWorld = 3;

std::vector<std::byte> encoded(const rpc::MessageHeader& header) {
  wire::Writer writer;
  rpc::encodeHeader(writer, header);
  return writer.take();
}

bool inWorld(const rpc::GlobalId& id) { return id.rank >= 0 && id.rank < kWorld; }
bool inWorld(const rpc::ForkEntry& entry) {
  return inWorld(entry.ref) && inWorld(entry.fork) && entry.owner >= 0 && entry.owner < kWorld;
}

// Ranks are indices from here on.
void checkRanks(const rpc::MessageHeader& header) {
  bool good = header.type != rpc::MessageType::kNotice || inWorld(header.fork);
  good = good && (!header.target || inWorld(*header.target)) && (!header.result || inWorld(*header.result));
  for (const rpc::InputEntry& input : header.inputs) good = good && inWorld({input.ref, input.owner, input.ref});
  for (const rpc::ForkEntry& entry : header.forks) good = good && inWorld(entry);
  promise(good, "all ranks in a header are of the job");
  promise(header.inputs.size() <= rpc::kMostInputs, "as many inputs as are stated");
  promise(header.status.trail().size() <= 1024, "a trail is as long as is stated");
}

void feed(Bytes input) {
  wire::Reader reader(input);
  Result<rpc::MessageHeader> header = rpc::parseHeader(reader, kWorld);
  if (!header.ok()) return;
  checkRanks(*header);
  std::vector<std::byte> again = encoded(*header);
  wire::Reader second(again);
  Result<rpc::MessageHeader> twice = rpc::parseHeader(second, kWorld);
  promise(twice.ok() && second.left() == 0, "a header that is read can be written and read again");
  promise(encoded(*twice) == again, "and says the same");
  // Of a trail the beginning is kept.
  Bytes came = input.first(input.size() - reader.left());
  if (header->status.trail().size() < 1024)
    promise(again == std::vector<std::byte>(came.begin(), came.end()), "it is written as it came");
}

Inputs seeds() {
  rpc::ForkEntry entry{{1, 5}, 2, {0, 6}};
  rpc::MessageHeader request;
  request.id = 17;
  request.timeLeftUs = 60'000'000;
  request.priority = -3;
  request.function = "scale";
  request.signature = 0x1234;
  request.forks = {entry, entry};
  Inputs all = {encoded(request)};
  request.target = entry.ref;
  request.result = entry;
  request.inputs = {{0, entry.ref, 1}, {2, entry.ref, 2}};
  request.field = bytesOf("a field");
  all.push_back(encoded(request));
  request.type = rpc::MessageType::kFetch;
  request.inputs.clear();
  request.function = rpc::kFetchValue;
  all.push_back(encoded(request));
  rpc::MessageHeader answer;
  answer.type = rpc::MessageType::kAnswer;
  all.push_back(encoded(answer));
  answer.status = internalError("why").withTrail({"a", "b"}).withWorker("w").withFunction("f").withRemoteType("T");
  all.push_back(encoded(answer));
  answer.type = rpc::MessageType::kCancel;
  all.push_back(encoded(answer));
  for (uint8_t notice = 1; notice <= 5; ++notice) {
    rpc::MessageHeader header;
    header.type = rpc::MessageType::kNotice;
    header.notice = rpc::RefNotice{notice};
    header.fork = entry;
    all.push_back(encoded(header));
  }
  return all;
}

const Fuzzer kCallMessages("call_messages", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::call_messages_fuzz
