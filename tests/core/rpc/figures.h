#pragma once
// Types that travel, as a program would declare its own, and random values of them.

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/seeds.h"
#include "treadle/core/rpc/codec.h"

namespace treadle::rpc {

enum class Colour : uint8_t { kRed, kGreen, kBlue };

struct Point {
  double x = 0;
  int32_t y = 0;
  bool operator==(const Point&) const = default;
};
TREADLE_FIELDS(Point, x, y)

struct Figure {
  std::string name;
  std::vector<Point> corners;
  Colour colour = Colour::kRed;
  std::optional<Point> centre;
  std::map<std::string, double> measures;
  bool operator==(const Figure&) const = default;
};
TREADLE_FIELDS(Figure, name, corners, colour, centre, measures)

inline std::vector<Figure> randomFigures(test::Random& random) {
  std::vector<Figure> figures(test::pick(random, 5));
  for (Figure& figure : figures) {
    figure.name = std::string(test::pick(random, 9), static_cast<char>(random()));
    figure.corners.resize(test::pick(random, 4));
    for (Point& corner : figure.corners) corner = {static_cast<double>(random()), static_cast<int32_t>(random())};
    figure.colour = static_cast<Colour>(test::pick(random, 3));
    if (test::pick(random, 2) == 0) figure.centre = Point{1, 2};
    for (uint64_t left = test::pick(random, 3); left > 0; --left) figure.measures[std::to_string(random())] = 0.5;
  }
  return figures;
}

}  // namespace treadle::rpc
