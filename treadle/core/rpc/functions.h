#pragma once
// The functions that peers may call on this worker, and their names. A message names the function that it calls; only
// functions that were added here can run. Each name has a signature, and its hash travels with every call: a caller and
// a callee built from different sources get an error that names both signatures.
//
// One thread fills it before the worker joins; it does not change afterwards. The worker takes a copy.
//
//   treadle::Functions functions;
//   functions.add<&scale>("scale").addType<Table, int64_t>("Table").add<&Table::row>("Table.row");

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "treadle/core/rpc/invoke.h"

namespace treadle {

namespace rpc {

// How long a function's handler keeps its thread, as a decaying average; shared by the copies of an entry. A single
// long run may only have lost its core, so the shorter of two successive runs counts.
class RunTime {
 public:
  void add(Duration took) {
    Duration::rep least = std::min(took.count(), last_.exchange(took.count(), std::memory_order_relaxed));
    Duration::rep before = average_.load(std::memory_order_relaxed);
    average_.store(before + (least - before) / 8, std::memory_order_relaxed);
  }
  Duration typical() const { return Duration(average_.load(std::memory_order_relaxed)); }

 private:
  std::atomic<Duration::rep> average_ = 0, last_ = 0;  // a lost update does no harm
};

}  // namespace rpc

class Functions {
 public:
  // Peers may call F here: a free function, a static or a non-static member function. A function that returns a Future
  // answers when that is ready. ArgumentError when the name already means another function.
  template <auto F, class Of = typename rpc::Traits<F>::Target>  // leave `Of` out: Note [Of] in invoke.h
  Functions& add(std::string name) {
    return put(&rpc::functionKey<F>, {std::move(name), rpc::Signature<F>::text(), &rpc::invokeFunction<F>, false});
  }
  // The name only: this worker calls F on others. The code of F does not run here.
  template <auto F, class Of = typename rpc::Traits<F>::Target>
  Functions& declare(std::string name) {
    return put(&rpc::functionKey<F>, {std::move(name), rpc::Signature<F>::text(), nullptr, false});
  }
  // Like `add` and `declare`, for a function that may run twice for one call without harm: its callers may retry it
  // (CallOptions::attempts). The declaration on the caller counts.
  template <auto F, class Of = typename rpc::Traits<F>::Target>
  Functions& addIdempotent(std::string name) {
    return put(&rpc::functionKey<F>, {std::move(name), rpc::Signature<F>::text(), &rpc::invokeFunction<F>, true});
  }
  template <auto F, class Of = typename rpc::Traits<F>::Target>
  Functions& declareIdempotent(std::string name) {
    return put(&rpc::functionKey<F>, {std::move(name), rpc::Signature<F>::text(), nullptr, true});
  }
  // Other workers may make a T from Args... here, by Worker::make. It lives here until the last reference to it is
  // gone.
  template <class T, class... Args>
  Functions& addType(std::string name) {
    return put(&rpc::typeKey<T>,
               {std::move(name), rpc::makerSignature<T, Args...>(), &rpc::invokeMaker<T, Args...>, false});
  }
  template <class T, class... Args>
  Functions& declareType(std::string name) {
    return put(&rpc::typeKey<T>, {std::move(name), rpc::makerSignature<T, Args...>(), nullptr, false});
  }
  // Adds all names of `other`. ArgumentError when one of them means something else here.
  Functions& merge(const Functions& other);

  struct Entry {
    std::string name;
    std::string signature;
    rpc::Invoker invoke;  // null: declared only
    bool idempotent;
    std::shared_ptr<rpc::RunTime> runTime = std::make_shared<rpc::RunTime>();
    uint64_t hash() const { return rpc::signatureHash(signature); }
  };
  // For a room that adds functions of another shape. `key` is the address of an object that identifies the function.
  Functions& put(const void* key, Entry entry);

  // Null when there is none.
  const Entry* find(std::string_view name) const;
  // The entries of a function or type, in the order in which they were added.
  std::vector<const Entry*> entriesOf(const void* key) const;
  // The first of them; null when there is none.
  const Entry* firstOf(const void* key) const;
  // "a, b, c": the functions that may be called here, for messages.
  std::string offered() const;

 private:
  struct Keyed {
    const void* key;
    Entry entry;
  };
  std::map<std::string, Keyed, std::less<>> entries_;
  std::vector<std::pair<const void*, std::string>> keys_;
};

}  // namespace treadle
