#pragma once
// The text that is learned, as numbers of characters. A character is a byte: a letter outside ASCII is several
// characters. Any thread. The functions about files and lengths throw std::runtime_error with one sentence that names
// the option to give.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace char_gpt {

// The characters of a text, numbered from 0 in the order of their bytes.
class Alphabet {
 public:
  explicit Alphabet(const std::string& text);

  int64_t size() const { return static_cast<int64_t>(characters_.size()); }
  // uint8 [N] of N characters. std::invalid_argument: a character that is not in the alphabet.
  at::Tensor encode(const std::string& text) const;
  // `tokens`: integers [N]. std::out_of_range: a number that no character has.
  std::string decode(const at::Tensor& tokens) const;

 private:
  std::string characters_;  // by number
};

struct Corpus {
  Alphabet alphabet;
  at::Tensor train, validation;  // uint8 [N]: the first nine tenths of the text, and the rest
};

// Where Debian has the common licences: 237,320 characters in all in Debian 12.
inline constexpr const char* kLicences = "/usr/share/common-licenses";

// The files of a folder in the order of their names, without links, which would be the same texts again.
std::vector<std::string> filesOf(const std::string& folder);

// Joins the files in their order. Both parts have the alphabet of the whole text.
Corpus loadCorpus(const std::vector<std::string>& files);

// Throws when the text is too short: a window takes length + 1 characters, a step of the training `windows` of them.
void checkFits(const Corpus& corpus, int64_t length, int64_t windows);

// The text for a terminal: control characters other than newline and tab become spaces. (The GPL-1 has form feeds.)
std::string printable(std::string text);

}  // namespace char_gpt
