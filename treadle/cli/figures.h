#pragma once
// What `treadle bench` measured, and how it is told: as a table or as JSON. Plain values and pure functions.

#include <string>
#include <vector>

namespace treadle::cli {

// Microseconds, one for each repetition.
struct Series {
  std::string name;  // of what is compared with; of ours: empty
  std::vector<double> values;

  // The value below which so many percent lie; 0 when there are none.
  double at(int percent) const;
};

// A thing that was measured, ours and the raw limits beside it, in turn.
struct Figure {
  std::string name;
  Series ours;
  std::vector<Series> limits;
  bool perSecond = false;  // told as how many of them there are in a second
  std::string note;        // why there is nothing, or less than was asked for
};

struct Figures {
  std::vector<std::pair<std::string, std::string>> machine;  // name and text
  std::vector<Figure> figures;
};

std::string tableOf(const Figures& figures);
std::string jsonOf(const Figures& figures);

}  // namespace treadle::cli
