#pragma once
// The offers of one member to the group's rank 0 that have not ended. The book numbers them, yields them when they are
// to be sent, and checks rank 0's orders. Offers that come while a message is unanswered wait for the next one, so many
// at once cost few messages, and one alone is sent at once. Pure logic; one thread at a time.

#include <deque>
#include <map>
#include <optional>

#include "treadle/core/group/fusion_messages.h"

namespace treadle::group {

class OfferBook {
 public:
  // Yields the number of the offer, which is open from now on.
  uint64_t add(Offer offer);
  // This member gives the open offer up. It stays open until rank 0 says that it has failed, or has ordered all of it.
  void withdraw(uint64_t number, Status why);

  // The message to send now. Each offer and withdrawal is yielded once.
  std::optional<Offers> next();

  // Applies orders. DataLoss, and nothing has changed, for what rank 0 never sends. Failures of offers that are not
  // open (any more) are taken out of `orders`.
  Status take(Orders& orders);

  // Neither failed nor ordered as a whole.
  bool isOpen(uint64_t number) const { return open_.contains(number); }

 private:
  struct Open {
    DataType dataType;
    ReduceOp reduceOp;
    uint64_t elements;
    uint64_t ordered = 0;
  };

  Status check(const std::vector<Part>& parts) const;

  std::map<uint64_t, Open> open_;  // by number
  std::deque<std::variant<Offer, Failed>> unsent_;
  uint64_t next_ = 0, sent_ = 0;  // offers
  bool awaitsAnswer_ = false;
};

}  // namespace treadle::group
