#pragma once
// How workers of one host get a key to authenticate by when nobody gave them one. Rank 0 makes a random key and hands
// it out over a UNIX socket, named after the master's port or the job, to processes of its own user alone
// (SO_PEERCRED); the others ask there, and check in turn that the giver is their own user. A job that spans hosts needs
// a key from its launcher instead.

#include <memory>
#include <string>

#include "treadle/core/io/listener.h"

namespace treadle::cluster {

// Rank 0's side. Serves until destroyed, on the reactor's thread.
class KeyService {
 public:
  // `meetingName`: Launch::meetingName. `key`: of a job that has one, empty for a new one. FailedPrecondition when
  // another job of this host has that name.
  static Result<std::unique_ptr<KeyService>> start(io::Reactor& reactor, const std::string& meetingName,
                                                   std::string key = {});
  const std::string& key() const { return key_; }

 private:
  KeyService(std::unique_ptr<io::Listener> listener, std::string key)
      : key_(std::move(key)), listener_(std::move(listener)) {}

  const std::string key_;
  const std::unique_ptr<io::Listener> listener_;
};

// The others' side; tries again until the deadline, as rank 0 may start later. DeadlineExceeded naming the master;
// Unauthenticated when the giver is another user.
Result<std::string> fetchKey(const std::string& meetingName, TimePoint deadline);

}  // namespace treadle::cluster
