#pragma once
// Carries the values of one message while they are turned into bytes (Encoder) or back (Decoder): numbers and text
// into the payload, tensors' memory as buffers beside it, remote references as entries of the message's fork list
// (references.h), and the interceptor's hook for codecs that want it. One thread at a time.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "treadle/core/base/buffer.h"
#include "treadle/core/base/error.h"
#include "treadle/core/rpc/interceptor.h"
#include "treadle/core/wire/reader.h"
#include "treadle/core/wire/writer.h"

namespace treadle::rpc {

class References;
class RefHandle;

// An argument that is given as a reference to its value.
struct ReferredArgument {
  uint16_t index;
  std::shared_ptr<RefHandle> handle;
};

class Encoder {
 public:
  Encoder(References& references, int toRank, OutgoingHook* hook)
      : references_(references), toRank_(toRank), hook_(hook) {}

  wire::Writer& writer() { return writer_; }
  const std::vector<Buffer>& buffers() const { return buffers_; }
  // The buffer's memory must live and stay as it is until the message has been sent (the send call returns).
  void addBuffer(Buffer buffer) { buffers_.push_back(std::move(buffer)); }
  // Keeps what a borrowed buffer points to until the message has been sent.
  void keep(std::shared_ptr<void> owner) { kept_.push_back(std::move(owner)); }

  // What was kept so far: for whoever needs the buffers for longer.
  std::vector<std::shared_ptr<void>> takeKept() { return std::exchange(kept_, {}); }

  // Puts a reference into the message's fork list; the index that stands for it. The fork itself is made when all
  // values are encoded, so that a codec that throws leaves nothing behind.
  uint32_t addReference(const std::shared_ptr<RefHandle>& handle);
  const std::vector<std::shared_ptr<RefHandle>>& forked() const { return forked_; }

  // ArgumentError for a handle of another worker of this process. What asking for its value threw, if its owner was
  // never asked.
  void checkThatItCanBeSent(const RefHandle& handle) const;

  // Argument `index` of the call is not among the values: the callee gets it from the reference's owner.
  void addInput(uint16_t index, std::shared_ptr<RefHandle> handle);
  std::vector<ReferredArgument> takeInputs() { return std::exchange(inputs_, {}); }

  // For its lifetime: what is encoded is given away. Its only holder will not look at it again, so memory that nobody
  // else holds may travel itself (Buffer::given) instead of being copied.
  class Giving {
   public:
    Giving(Encoder& encoder, bool ownsAll) : encoder_(encoder), before_(std::exchange(encoder.giving_, ownsAll)) {}
    ~Giving() { encoder_.giving_ = before_; }
    Giving(const Giving&) = delete;
    Giving& operator=(const Giving&) = delete;

   private:
    Encoder& encoder_;
    const bool before_;
  };
  bool giving() const { return giving_; }

  int toRank() const { return toRank_; }
  References& references() { return references_; }
  OutgoingHook* hook() const { return hook_; }

 private:
  References& references_;
  const int toRank_;
  OutgoingHook* const hook_;
  bool giving_ = false;
  wire::Writer writer_;
  std::vector<Buffer> buffers_;
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<std::shared_ptr<RefHandle>> forked_;
  std::vector<ReferredArgument> inputs_;
};

// Holds all that the values are read from, so that it may be kept until somebody knows their types.
class Decoder {
 public:
  // The values begin at `valuesAt` of the payload.
  Decoder(References& references, std::vector<std::byte> payload, size_t valuesAt, std::vector<Buffer> buffers,
          std::vector<std::shared_ptr<RefHandle>> handles, std::shared_ptr<IncomingHook> hook)
      : references_(references),
        payload_(std::move(payload)),
        reader_(Bytes(payload_).subspan(valuesAt)),
        buffers_(std::move(buffers)),
        handles_(std::move(handles)),
        hook_(std::move(hook)) {}
  Decoder(Decoder&&) = default;

  wire::Reader& reader() { return reader_; }
  // The next buffer, in the order in which they were added. DataError when there is none.
  Buffer takeBuffer();
  std::shared_ptr<RefHandle> reference();

  References& references() { return references_; }
  IncomingHook* hook() const { return hook_.get(); }

  // DataError unless everything read so far was there. Codecs call it before they trust what they read.
  void check() const {
    if (!reader_.ok()) raise(dataLoss("the values of a message end too early"));
  }
  // All values are decoded. DataError unless the message was read whole.
  void finish();

 private:
  References& references_;
  std::vector<std::byte> payload_;
  wire::Reader reader_;
  std::vector<Buffer> buffers_;
  size_t nextBuffer_ = 0;
  std::vector<std::shared_ptr<RefHandle>> handles_;
  std::shared_ptr<IncomingHook> hook_;
};

}  // namespace treadle::rpc
