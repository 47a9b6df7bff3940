#pragma once
// Which connection a machine of a summation service writes to next, so that each gets its share of what is sent, at
// every moment. TCP gives each connection as much: those with small shares would be done early, and the machines behind
// those with large ones would receive at the speed of one connection to the end.
//
// Each connection has a virtual time, the bytes that it was given over its share. The one with the lowest goes next, if
// it can be written; none gets more than `lead` ahead of the slowest that has something to send, writable or not. One
// that had nothing to send begins at the time of the slowest, or of the one that was served last. (Start-time fair
// queueing, P. Goyal et al. 1996, with a bounded lead.) Where machines need not end together, one that cannot be
// written to holds nobody back: it begins anew when it can be. Pure logic; one thread at a time.

#include <cstdint>
#include <optional>
#include <vector>

namespace treadle::summation {

class SendOrder {
 public:
  // Of all that is sent, 2% of 32 MB.
  static constexpr double kLeadBytes = 640'000;

  // One connection for each share; those with a share of 0 have only small messages, and go first.
  explicit SendOrder(const std::vector<double>& shares, double leadBytes = kLeadBytes, bool endTogether = true);

  // From now on: one for each connection.
  void setShares(const std::vector<double>& shares);
  void setPending(size_t connection, bool hasBytes);
  void setWritable(size_t connection, bool isWritable);
  void sent(size_t connection, uint64_t bytes);

  // Nothing: no connection may be written to before one of the above changes.
  std::optional<size_t> next() const;

 private:
  struct Flow {
    double share;
    double time = 0;  // virtual, in bytes of all that is sent
    bool isPending = false, isWritable = false;
  };

  // Of the slowest with something to send that others wait for; nothing if there is none.
  std::optional<double> slowest() const;

  std::vector<Flow> flows_;
  double now_ = 0;  // virtual: of the connection that was served last, when it was
  const double leadBytes_;
  const bool endTogether_;
};

}  // namespace treadle::summation
