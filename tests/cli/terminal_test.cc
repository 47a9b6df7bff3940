// What stands on a terminal: a small terminal of our own reads what the launcher writes to a real one (a pty)
// and says what a user would see.

#include "treadle/cli/terminal.h"

#include <pty.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>

#include "gtest/gtest.h"
#include "tests/support/places.h"

namespace treadle::cli::terminal_test {
namespace {

using Strings = std::vector<std::string>;

// Understands \r, \n, ESC [ K and colours, and fails at everything else. Rows do not wrap: one that is too
// long fails.
class Screen {
 public:
  explicit Screen(size_t columns) : columns_(columns) {}

  void show(std::string_view bytes) {
    for (size_t i = 0; i < bytes.size();) {
      if (bytes[i] == '\x1b') {
        size_t end = bytes.find_first_of("mK", i);
        ASSERT_NE(std::string_view::npos, end);
        if (bytes[end] == 'K') rows_.back().resize(std::min(column_, rows_.back().size()));
        i = end + 1;
        continue;
      }
      put(bytes[i++]);
    }
  }
  // The rows, without the empty one below the last line end.
  Strings rows() const {
    Strings rows = rows_;
    if (rows.back().empty()) rows.pop_back();
    return rows;
  }

 private:
  void put(char c) {
    if (c == '\n') return rows_.emplace_back(), void();
    if (c == '\r') return column_ = 0, void();
    ASSERT_GE(static_cast<unsigned char>(c), ' ');
    std::string& row = rows_.back();
    if (row.size() < column_ + 1) row.resize(column_ + 1, ' ');
    row[column_++] = c;
    ASSERT_LT(column_, columns_) << "the row wraps: " << row;
  }

  size_t columns_, column_ = 0;
  Strings rows_{""};
};

// `treadle run -n workers -- sh -c script` on a terminal of 40 columns: the bytes it wrote there. Once
// "ready" has come as often as there are workers, `keys` are typed.
std::string onTerminal(int workers, const std::string& script, int* exitCode, std::string_view keys = "") {
  winsize size{24, 40, 0, 0};
  int terminal = -1;
  std::string count = std::to_string(workers);
  const std::string command = test::treadleCommand();
  pid_t child = ::forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    ::setenv("TERM", "xterm", 1);
    ::signal(SIGINT, SIG_DFL);  // ignored when the tests run in the background of a shell
    ::execl(command.c_str(), "treadle", "run", "-n", count.c_str(), "--grace", "3600", "--", "/bin/sh", "-c",
            script.c_str(), nullptr);
    ::_exit(127);
  }
  std::string bytes;
  std::array<char, 4096> some;
  ssize_t got;
  while ((got = ::read(terminal, some.data(), some.size())) > 0) {
    bytes.append(some.data(), static_cast<size_t>(got));
    int ready = 0;
    for (size_t at = 0; (at = bytes.find("ready", at)) != std::string::npos; ++at) ++ready;
    if (ready < workers || keys.empty()) continue;
    EXPECT_EQ(static_cast<ssize_t>(keys.size()), ::write(terminal, keys.data(), keys.size()));
    keys = "";
  }
  ::close(terminal);
  int status = 0;
  ::waitpid(child, &status, 0);
  *exitCode = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return bytes;
}

Strings screenOf(int workers, const std::string& script) {
  int exitCode = -1;
  Screen screen(40);
  screen.show(onTerminal(workers, script, &exitCode));
  EXPECT_EQ(0, exitCode);
  return screen.rows();
}

TEST(Terminal, showsAProgressBarInOneRow) {
  EXPECT_EQ((Strings{"[0] 100% done", "[0] bye"}),
            screenOf(1, "for p in 10 20 30 40; do printf '\\r%s%%' $p; done; printf '\\r100%% done\\n'; echo bye"));
}

TEST(Terminal, drawsTheBarAgainBelowTheLinesOfOthers) {
  Strings rows = screenOf(2,
                          "i=0; while [ $i -lt 200 ]; do i=$((i+1));"
                          "if [ $RANK = 0 ]; then printf '\\rstep %s' $i; else echo line $i; fi; done;"
                          "[ $RANK = 0 ] && echo; exit 0");
  Strings expected = {"[0] step 200"};
  for (int i = 1; i <= 200; ++i) expected.push_back("[1] line " + std::to_string(i));
  std::sort(rows.begin(), rows.end());
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(expected, rows);
}

TEST(Terminal, cutsABarThatWouldWrapAndTellsWorkersTheWidth) {
  EXPECT_EQ((Strings{"[0] x", "[0] columns 35 terminal 1"}),
            screenOf(1,
                     "printf '\\r%060d' 7; printf '\\r%060d' 8; printf '\\rx\\n'; "
                     "echo columns $COLUMNS terminal $TREADLE_TERMINAL"));
}

TEST(Terminal, showsAnUnfinishedLineAtOnceAndEndsItAtTheEnd) {
  EXPECT_EQ((Strings{"[0] working... "}), screenOf(1, "printf 'working... '"));
}

TEST(Terminal, endsAnUnfinishedLineOfOneStreamBeforeTheOtherStreamsLines) {
  Strings rows = screenOf(1, "printf unfinished; echo line >&2; echo -end");
  std::sort(rows.begin(), rows.end());
  EXPECT_EQ((Strings{"[0] line", "[0] unfinished-end"}), rows);
}

TEST(Terminal, handsOnCtrlCOnceToEachWorker) {
  int exitCode = -1;
  std::string bytes =
      onTerminal(2, "trap 'echo int; exit 5' INT; echo ready; while :; do sleep 1000 & wait; done", &exitCode, "\x03");
  EXPECT_EQ(130, exitCode) << bytes;
  for (const char* rank : {"[0]", "[1]"}) {
    std::string line = std::string(rank) + "\x1b[0m int";
    EXPECT_NE(std::string::npos, bytes.find(line)) << bytes;
    EXPECT_EQ(bytes.find(line), bytes.rfind(line)) << "told once";
  }
  EXPECT_NE(std::string::npos, bytes.find("treadle run: ended by SIGINT; all workers have ended")) << bytes;
}

TEST(Terminal, letsOnlyTextAndColoursThrough) {
  EXPECT_EQ("plain", printable("plain"));
  EXPECT_EQ("\x1b[31mred\x1b[0m", printable("\x1b[31mred"));
  EXPECT_EQ("ab", printable("a\x1b[2Kb"));
  EXPECT_EQ("ab", printable("a\x1b[1Ab\x07"));
  EXPECT_EQ("", printable("\x1b["));
  EXPECT_EQ("", printable("\x1b"));
  EXPECT_EQ("caf\xC3\xA9", printable("caf\xC3\xA9"));
}

TEST(Terminal, cutsAtTheWidth) {
  EXPECT_EQ("abc", printable("abcdef", 3));
  EXPECT_EQ("\x1b[1mabc\x1b[0m", printable("\x1b[1mabcdef", 3));
  EXPECT_EQ("\xE2\x96\x88\xE2\x96\x88", printable("\xE2\x96\x88\xE2\x96\x88\xE2\x96\x88", 2)) << "a block is one wide";
  EXPECT_EQ("\xF0\x9F\x9A\x82", printable("\xF0\x9F\x9A\x82\xF0\x9F\x9A\x82", 3)) << "an emoji is two wide";
}

TEST(Terminal, coloursThePrefixOnlyWhenAsked) {
  EXPECT_EQ("[12] ", prefixOf(12, false));
  EXPECT_EQ("\x1b[31m[12]\x1b[0m ", prefixOf(12, true));
}

}  // namespace
}  // namespace treadle::cli::terminal_test
