#pragma once
// What a peer may call on this worker, and under which names. A function that crosses the wire is known by its name;
// nothing runs because bytes ask for it that was not added here. Each name has a signature, whose hash travels with
// every call: caller and callee built from different sources get an error that names both signatures.
//
// Filled before the worker joins; not changed after that; one thread. A copy goes into the worker.
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

class Functions {
 public:
  // F may be called here by others: a free function, a static or a non-static member function. Returning a Future, it
  // answers when that is ready. ArgumentError when the name means another function already.
  template <auto F, class Of = typename rpc::Traits<F>::Target>  // `Of` is not given: Note [Of] in invoke.h
  Functions& add(std::string name) {
    return put(&rpc::functionKey<F>, {std::move(name), rpc::Signature<F>::text(), &rpc::invokeFunction<F>, false});
  }
  // Only the name: this worker calls F elsewhere. The code of F is not run here.
  template <auto F, class Of = typename rpc::Traits<F>::Target>
  Functions& declare(std::string name) {
    return put(&rpc::functionKey<F>, {std::move(name), rpc::Signature<F>::text(), nullptr, false});
  }
  // Like `add` and `declare`, for a function that may run twice for one call without harm: whoever calls it may have it
  // tried again (CallOptions::attempts). The caller's own mark counts.
  template <auto F, class Of = typename rpc::Traits<F>::Target>
  Functions& addIdempotent(std::string name) {
    return put(&rpc::functionKey<F>, {std::move(name), rpc::Signature<F>::text(), &rpc::invokeFunction<F>, true});
  }
  template <auto F, class Of = typename rpc::Traits<F>::Target>
  Functions& declareIdempotent(std::string name) {
    return put(&rpc::functionKey<F>, {std::move(name), rpc::Signature<F>::text(), nullptr, true});
  }
  // A T can be made here from Args..., by Worker::make on other workers; it lives here until the last reference is
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
  // Takes over all names of `other`. ArgumentError when one means something else here.
  Functions& merge(const Functions& other);

  // How long a function's handler keeps its thread, as an average that forgets; shared by an entry's copies. What took
  // long once may have lost its core meanwhile: of two in a row the shorter counts.
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
  struct Entry {
    std::string name;
    std::string signature;
    rpc::Invoker invoke;  // null: declared only
    bool idempotent;
    std::shared_ptr<RunTime> runTime = std::make_shared<RunTime>();
    uint64_t hash() const { return rpc::signatureHash(signature); }
  };
  // For a room that brings functions of another shape. `key` is the address of an object that stands for it.
  Functions& put(const void* key, Entry entry);

  // Null when there is none.
  const Entry* find(std::string_view name) const;
  // The entries of a function or type, in the order in which they were added.
  std::vector<const Entry*> entriesOf(const void* key) const;
  // The first of them; null when there is none.
  const Entry* firstOf(const void* key) const;
  // "a, b, c": what may be called here, for messages.
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
