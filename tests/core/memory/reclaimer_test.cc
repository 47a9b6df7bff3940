#include "treadle/core/memory/reclaimer.h"

#include <fcntl.h>

#include <algorithm>
#include <optional>

#include "tests/support/gate.h"
#include "tests/support/resident.h"
#include "treadle/core/base/error.h"

namespace treadle::memory::reclaimer_test {
namespace {

using io::SharedMemory;
using test::eventually;
using test::eventuallyReleased;
using test::residentBytes;

constexpr size_t kPage = 4096, kBytes = 64 * kPage;

// An arena whose maker can be ended; what is in use of it by this process can be changed.
class ReclaimerTest : public ::testing::Test {
 protected:
  ReclaimerTest() { std::fill_n(maker->bytes().data(), kBytes, std::byte{7}); }
  std::shared_ptr<const SharedMemory> adopt() const {
    return std::make_shared<const SharedMemory>(
        valueOrThrow(SharedMemory::adopt(io::Fd(::fcntl(maker->fd(), F_DUPFD_CLOEXEC, 0)))));
  }
  void use(std::vector<SharedMemory::Range> ranges) {
    MutexLock lock(mutex);
    kept = std::move(ranges);
  }
  Reclaimer::Kept inUse() {
    return [this] {
      MutexLock lock(mutex);
      return kept;
    };
  }

  std::optional<SharedMemory> maker = valueOrThrow(SharedMemory::create(kBytes));
  Mutex mutex;
  std::vector<SharedMemory::Range> kept TREADLE_GUARDED_BY(mutex);
};

TEST_F(ReclaimerTest, keepsWhatIsInUseAndUnmapsTheArenaInTheEnd) {
  Reclaimer reclaimer;
  std::shared_ptr<const SharedMemory> arena = adopt();
  const std::byte* data = arena->bytes().data();
  use({{kPage, kPage}, {8 * kPage, kPage}});
  maker.reset();
  reclaimer.add(arena, inUse());
  EXPECT_TRUE(eventually([&] { return residentBytes(data, kBytes) == 2 * kPage; }));
  EXPECT_TRUE(eventually([&] { return reclaimer.keptBytes() == 2 * kPage; }));
  EXPECT_EQ(std::byte{7}, data[kPage]);
  use({{kPage, kPage}});
  reclaimer.hurry();
  EXPECT_TRUE(eventually([&] { return residentBytes(data, kBytes) == kPage; }));
  use({});
  reclaimer.hurry();
  EXPECT_TRUE(eventuallyReleased([&] { return arena.use_count() == 1; }));
  EXPECT_TRUE(eventually([&] { return reclaimer.keptBytes() == 0; }));
  EXPECT_EQ(0U, residentBytes(data, kBytes));
}

// Nobody reports the end of the maker, nor that of another process that used the arena.
TEST_F(ReclaimerTest, looksAgainByItself) {
  Reclaimer reclaimer;
  std::shared_ptr<const SharedMemory> arena = adopt(), others = adopt();
  const std::byte* data = arena->bytes().data();
  use({{0, kPage}});
  reclaimer.add(arena, inUse());
  EXPECT_TRUE(eventually([&] { return reclaimer.keptBytes() == kPage; }));
  maker.reset();
  others.reset();
  EXPECT_TRUE(eventually([&] { return residentBytes(data, kBytes) == kPage; }));
}

// Also at the moment at which its thread ends.
TEST_F(ReclaimerTest, takesAnotherArenaAfterItsThreadHadNothingLeft) {
  Reclaimer reclaimer;
  std::shared_ptr<const SharedMemory> kept = adopt();
  for (int i = 0; i < 50; ++i) {
    std::shared_ptr<const SharedMemory> arena = adopt();
    reclaimer.add(arena, inUse());
    EXPECT_TRUE(eventuallyReleased([&] { return arena.use_count() == 1; }));
  }
  use({{0, kPage}});
  maker.reset();
  reclaimer.add(kept, inUse());
  EXPECT_TRUE(eventually([&] { return residentBytes(kept->bytes().data(), kBytes) == kPage; }));
}

TEST_F(ReclaimerTest, endsWhileArenasAreInUse) {
  std::shared_ptr<const SharedMemory> arena = adopt();
  use({{0, kPage}});
  {
    Reclaimer reclaimer;
    reclaimer.add(arena, inUse());
  }
  EXPECT_EQ(1, arena.use_count());
  EXPECT_EQ(std::byte{7}, arena->bytes()[0]);
}

}  // namespace
}  // namespace treadle::memory::reclaimer_test
