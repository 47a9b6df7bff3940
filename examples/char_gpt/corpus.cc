#include "examples/char_gpt/corpus.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <system_error>

#include "examples/common/text_file.h"

namespace char_gpt {
namespace {

[[noreturn]] void askForText(const std::string& what) {
  throw std::runtime_error(what + "; name texts to learn from with --text FILE...");
}

}  // namespace

// The order is that of bytes from 0 to 255: a std::set of chars would have those from 128 on first where char is
// signed.
Alphabet::Alphabet(const std::string& text) {
  const std::set<unsigned char> bytes(text.begin(), text.end());
  characters_.assign(bytes.begin(), bytes.end());
}

at::Tensor Alphabet::encode(const std::string& text) const {
  at::Tensor tokens = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::transform(text.begin(), text.end(), tokens.mutable_data_ptr<uint8_t>(), [&](char character) {
    const size_t number = characters_.find(character);
    if (number == std::string::npos)
      throw std::invalid_argument("the alphabet has no character " + std::to_string(static_cast<uint8_t>(character)));
    return static_cast<uint8_t>(number);
  });
  return tokens;
}

std::string Alphabet::decode(const at::Tensor& tokens) const {
  const at::Tensor numbers = tokens.to(at::kLong).contiguous();
  std::string text;
  for (int64_t i = 0; i < numbers.numel(); ++i)
    text += characters_.at(static_cast<size_t>(numbers.const_data_ptr<int64_t>()[i]));
  return text;
}

std::vector<std::string> filesOf(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (entry->symlink_status().type() == std::filesystem::file_type::regular) files.push_back(entry->path().string());
  if (error) askForText(folder + ": the folder cannot be read: " + error.message());
  if (files.empty()) askForText(folder + ": the folder has no files that are not links");
  std::sort(files.begin(), files.end());
  return files;
}

Corpus loadCorpus(const std::vector<std::string>& files) {
  std::string text;
  for (const std::string& file : files) text += example::readText(file);
  Alphabet alphabet(text);
  const at::Tensor tokens = alphabet.encode(text);
  const int64_t train = tokens.numel() / 10 * 9;
  return {std::move(alphabet), tokens.narrow(0, 0, train), tokens.narrow(0, train, tokens.numel() - train)};
}

void checkFits(const Corpus& corpus, int64_t length, int64_t windows) {
  const auto check = [](const std::string& use, int64_t found, const std::string& user, int64_t wanted,
                        const std::string& options) {
    if (found < wanted)
      throw std::runtime_error("the text for the " + use + " has " + std::to_string(found) + " characters, and " +
                               user + " needs " + std::to_string(wanted) + "; name a longer text with --text or a " +
                               "smaller " + options);
  };
  check("training", corpus.train.numel(), "a step", length + windows, "--batch or --length");
  check("validation", corpus.validation.numel(), "a window", length + 1, "--length");
}

std::string printable(std::string text) {
  for (char& character : text) {
    const auto byte = static_cast<uint8_t>(character);
    if ((byte < ' ' && character != '\n' && character != '\t') || byte == 0x7f) character = ' ';
  }
  return text;
}

}  // namespace char_gpt
