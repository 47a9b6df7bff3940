#include "tests/soak/ensemble.h"

#include <memory>

#include "treadle/core/base/mutex.h"

namespace treadle::soak {
namespace {

using Numbers = std::vector<Number>;

// The groups of this process, which is one worker. A group stays until its worker ends, so each is made once.
class Groups {
 public:
  static Groups& ofProcess() {
    static Groups groups;
    return groups;
  }

  ProcessGroup get(Worker& worker, const std::string& name, const std::vector<std::string>& members) {
    std::string key = name;
    for (const std::string& member : members) key += " " + member;
    MutexLock lock(mutex_);
    ProcessGroup& group = groups_[key];
    if (!group.valid()) group = ProcessGroup::make(worker, members, {.name = name});
    return group;
  }

 private:
  Mutex mutex_;
  std::map<std::string, ProcessGroup> groups_ TREADLE_GUARDED_BY(mutex_);
};

// The numbers of `count` elements that belong to a member, or to a pair of members.
Numbers numbersOf(Number seed, Number owner, size_t count) {
  Numbers numbers(count);
  for (size_t i = 0; i < count; ++i) numbers[i] = mix(mix(seed, owner), i);
  return numbers;
}

// The input of an operation and its expected output. They stay until the operation has ended.
struct Work {
  Numbers input, output, wanted;
  Bytes in() const { return std::as_bytes(std::span(input)); }
  MutableBytes out() { return std::as_writable_bytes(std::span(output)); }
};

Future<void> checked(Future<void> operation, std::shared_ptr<Work> work, const char* what) {
  return operation.then([work = std::move(work), what] {
    if (work->output != work->wanted) throw Wrong(std::string(what) + " gave wrong numbers");
  });
}

// One operation of one member, with `count` numbers, in blocks where there are blocks.
class Part {
 public:
  Part(ProcessGroup group, Number seed, size_t count)
      : group_(std::move(group)),
        seed_(seed),
        count_(count),
        self_(static_cast<Number>(group_.rank())),
        size_(static_cast<Number>(group_.size())) {}

  Future<void> sum() {
    work_->output = own();
    work_->wanted = sumOf([](Number member) { return member; });
    return checked(allReduce(group_, std::span(work_->output)), work_, "allReduce");
  }
  Future<void> copyOfRoot() {
    const Number root = seed_ % size_;
    work_->wanted = numbersOf(seed_, root, count_);
    work_->output = self_ == root ? work_->wanted : Numbers(count_);
    return checked(broadcast(group_, work_->out(), static_cast<int>(root)), work_, "broadcast");
  }
  Future<void> sumAtRoot() {
    const Number root = seed_ % size_;
    work_->input = own();
    if (self_ == root) {
      work_->wanted = sumOf([](Number member) { return member; });
      work_->output.resize(count_);
    }
    return checked(
        reduce(group_, std::span<const Number>(work_->input), std::span(work_->output), static_cast<int>(root)), work_,
        "reduce");
  }
  // The block that one member has for another belongs to the pair, here and in `exchange`.
  Future<void> sumOfBlocks() {
    for (Number member = 0; member < size_; ++member) add(work_->input, self_ * size_ + member);
    work_->wanted = sumOf([this](Number member) { return member * size_ + self_; });
    work_->output.resize(count_);
    return checked(reduceScatter(group_, std::span<const Number>(work_->input), std::span(work_->output)), work_,
                   "reduceScatter");
  }
  Future<void> allToRoot() {
    const Number root = seed_ % size_;
    work_->input = own();
    for (Number member = 0; self_ == root && member < size_; ++member) add(work_->wanted, member);
    work_->output.resize(work_->wanted.size());
    return checked(gather(group_, work_->in(), work_->out(), static_cast<int>(root)), work_, "gather");
  }
  Future<void> fromRoot() {
    const Number root = seed_ % size_;
    for (Number member = 0; self_ == root && member < size_; ++member) add(work_->input, member);
    work_->wanted = own();
    work_->output.resize(count_);
    return checked(scatter(group_, work_->in(), work_->out(), static_cast<int>(root)), work_, "scatter");
  }
  Future<void> all() {
    work_->input = own();
    for (Number member = 0; member < size_; ++member) add(work_->wanted, member);
    work_->output.resize(work_->wanted.size());
    return checked(allGather(group_, work_->in(), work_->out()), work_, "allGather");
  }
  Future<void> exchange() {
    for (Number member = 0; member < size_; ++member) {
      add(work_->input, self_ * size_ + member);
      add(work_->wanted, member * size_ + self_);
    }
    work_->output.resize(work_->wanted.size());
    return checked(allToAll(group_, work_->in(), work_->out()), work_, "allToAll");
  }
  // To the next member, from the one before.
  Future<void> pass() {
    const Number next = (self_ + 1) % size_, previous = (self_ + size_ - 1) % size_;
    work_->input = own();
    work_->wanted = numbersOf(seed_, previous, count_);
    work_->output.resize(count_);
    Future<void> sent = send(group_, work_->in(), static_cast<int>(next));
    Future<void> got = recv(group_, work_->out(), static_cast<int>(previous));
    return checked(whenAll(std::vector{std::move(sent), std::move(got)}), work_, "recv");
  }

 private:
  Numbers own() const { return numbersOf(seed_, self_, count_); }
  // By element, of what `owner(member)` has, over all members.
  template <class F>
  Numbers sumOf(F owner) const {
    Numbers sum(count_);
    for (Number member = 0; member < size_; ++member) {
      const Numbers theirs = numbersOf(seed_, owner(member), count_);
      for (size_t i = 0; i < count_; ++i) sum[i] += theirs[i];
    }
    return sum;
  }
  void add(Numbers& numbers, Number owner) const {
    const Numbers more = numbersOf(seed_, owner, count_);
    numbers.insert(numbers.end(), more.begin(), more.end());
  }

  const ProcessGroup group_;
  const Number seed_;
  const size_t count_;
  const Number self_, size_;
  const std::shared_ptr<Work> work_ = std::make_shared<Work>();
};

// Sizes from one message to many chunks; small ones are drawn more often.
size_t countOf(Number drawn) {
  constexpr size_t kLargest[] = {1, 100, 100, 1000, 1000, 5000, 20'000};
  return (drawn >> 8U) % kLargest[drawn % std::size(kLargest)];
}

Future<void> start(const ProcessGroup& group, Number seed) {
  Part part(group, seed, countOf(mix(seed, 1)));
  switch (mix(seed, 2) % 10) {
    case 0: return part.sum();
    case 1: return part.copyOfRoot();
    case 2: return part.all();
    case 3: return part.exchange();
    case 4: return part.pass();
    case 5: return part.sumAtRoot();
    case 6: return part.sumOfBlocks();
    case 7: return part.allToRoot();
    case 8: return part.fromRoot();
    default: return barrier(group);
  }
}

}  // namespace

Task<void> takePart(CallContext& call, std::string name, std::vector<std::string> members, Number seed) {
  const std::vector<std::string> reversed(members.rbegin(), members.rend());
  const ProcessGroup first = Groups::ofProcess().get(call.worker(), name + "/1", members);
  const ProcessGroup second = Groups::ofProcess().get(call.worker(), name + "/2", reversed);
  std::vector<Future<void>> operations;
  for (Number left = 1 + seed % 6; left > 0; --left) {
    const Number own = mix(seed, left);
    operations.push_back(start(own % 2 == 0 ? first : second, own));
  }
  co_await whenAll(std::move(operations));
}

}  // namespace treadle::soak
