// A request whose large values never come whole, as its caller is lost on the way: of a bare socket.
#include <sys/socket.h>

#include "tests/support/gate.h"
#include "tests/support/local_job.h"
#include "treadle/core/io/socket.h"
#include "treadle/core/rpc/engine.h"
#include "treadle/core/wire/frame.h"

namespace treadle::rpc::unfinished_request_test {
namespace {

struct Thing {};

TEST(UnfinishedRequest, namesItsCallerToWhoWaitsForWhatItWasToMake) {
  int ends[2];
  ASSERT_EQ(0, ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends));
  io::Fd theirs(ends[1]);
  cluster::MembershipOptions options{.heartbeatTimeout = test::kHangs, .connection = {}};
  test::LocalWorker worker({"w0", 0}, 2, options, {});
  auto engine = std::make_unique<Engine>(*worker.membership, *worker.reactor, *worker.executor,
                                         Functions().addType<Thing>("Thing"), nullptr, EngineOptions{}, nullptr);
  worker.membership->setHandler(link::Subject::kRpc, *engine);
  throwIfError(worker.membership->attach({"w1", 1}, io::Fd(ends[0]), link::Connection::Kind::kServing));

  const GlobalId thing{1, 1};
  MessageHeader header;
  header.id = 1;
  header.timeLeftUs = UINT64_MAX;
  header.function = "Thing";
  header.signature = signatureHash(makerSignature<Thing>());
  header.result = ForkEntry{thing, 0, {1, 2}};
  wire::Writer payload;
  encodeHeader(payload, header);
  const std::vector<wire::BufferEntry> onLanes = {{1 << 20, wire::Place::kOnLanes, 1}};
  std::vector<std::byte> frame = wire::frameFront(wire::FrameKind::kMessage, 2, payload.bytes(), onLanes);
  throwIfError(io::writeAll(theirs.get(), frame, test::patience()));
  ASSERT_TRUE(test::eventually([&] { return engine->counts().running == 1; }));

  Status why;
  test::Gate told;
  engine->references().whenReady(thing, [&](const Result<OwnedValue>& value) {
    why = value.status();
    told.open();
  });
  theirs.reset();
  told.wait();
  EXPECT_EQ(Code::kPeerLost, why.code()) << why.toString();
  EXPECT_EQ("w1", why.worker()) << why.toString();
  worker.executor->stop();
  engine->close(cancelled("the test is over"));
}

}  // namespace
}  // namespace treadle::rpc::unfinished_request_test
