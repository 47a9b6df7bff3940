#pragma once
// What a terminal needs: its width, which control sequences may pass, the colour of a rank. Pure but for
// `columnsOf`.

#include <string>
#include <string_view>

namespace treadle::cli {

// Whether `fd` is a terminal that understands control sequences (TERM is set and not "dumb").
bool isScreen(int fd);

// Its width in characters; 80 when it does not tell.
size_t columnsOf(int fd);

// `text` as it may be shown: of control characters only tabs and colours are left, so that one worker can
// neither erase what the others wrote nor its own prefix. At most `columns` wide.
std::string printable(std::string_view text, size_t columns = std::string::npos);

// "[2] ", in the rank's colour when `coloured`.
std::string prefixOf(int rank, bool coloured);

}  // namespace treadle::cli
