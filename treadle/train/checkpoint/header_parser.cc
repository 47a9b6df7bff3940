#include "treadle/train/checkpoint/header_parser.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

namespace treadle::safetensors {
namespace {

// Takes the events of a JSON parser and builds a `Header`, giving up at the first thing that a header may not
// hold. No JSON tree is ever built: a tree of a hostile header could take many times its size in memory, or
// nest as deep as it likes, whereas this parser knows at each moment the only things that may come next. One
// object reads one header.
class HeaderParser final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Header header() && { return std::move(header_); }
  const std::string& reason() const { return reason_; }  // why parsing stopped

  // The parser's events; each returns false to stop.
  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_unsigned(number_unsigned_t value) override;
  bool number_float(number_float_t, const string_t&) override {
    return unexpected("a number that is no 64-bit integer");
  }
  bool string(string_t& text) override;
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool start_object(std::size_t) override;
  bool key(string_t& text) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override;
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override;

 private:
  // Where in the grammar of header.h the parser stands. Every event is judged by it, so that what the format
  // does not provide for has no code that it could reach.
  enum class Place {
    kBefore,
    kTensors,  // before the object; inside it, where names stand
    kMetadata,
    kMetadataKeys,
    kMetadataValue,
    kTensor,
    kFields,  // before a tensor's object; inside it
    kDtype,
    kShape,
    kDimensions,
    kOffsets,
    kOffsetNumbers,
  };

  // The first reason stays: the parser stops at once.
  bool fail(std::string reason);
  bool unexpected(std::string_view what);
  std::string subject() const;  // what the parser is reading, for messages
  bool nameKey(std::string& text);
  bool fieldKey(std::string_view text);
  bool finishTensor();

  // All the memory there is besides the result: nothing grows with the depth of the text.
  Place place_ = Place::kBefore;
  Header header_;
  std::unordered_set<std::string> names_;
  TensorEntry tensor_;  // the one being read
  bool hasDtype_ = false, hasShape_ = false, hasOffsets_ = false, hasMetadata_ = false;
  size_t offsetCount_ = 0;
  std::string metadataKey_;
  std::string reason_;
};

bool HeaderParser::fail(std::string reason) {
  reason_ = std::move(reason);
  return false;
}

std::string HeaderParser::subject() const {
  switch (place_) {
    case Place::kBefore:
    case Place::kTensors: return "its header";
    case Place::kMetadata:
    case Place::kMetadataKeys: return "the header's \"__metadata__\"";
    case Place::kMetadataValue: return "the metadata value of " + inQuotes(metadataKey_);
    case Place::kTensor:
    case Place::kFields: return "the entry of tensor " + inQuotes(tensor_.name);
    case Place::kDtype: return "the dtype of tensor " + inQuotes(tensor_.name);
    case Place::kShape:
    case Place::kDimensions: return "the shape of tensor " + inQuotes(tensor_.name);
    case Place::kOffsets:
    case Place::kOffsetNumbers: return "the data_offsets of tensor " + inQuotes(tensor_.name);
  }
  return "its header";
}

bool HeaderParser::unexpected(std::string_view what) {
  return fail(subject() + (place_ == Place::kDimensions || place_ == Place::kOffsetNumbers ? " holds " : " is ") +
              std::string(what));
}

// The JSON library's own text is left out: it quotes the input without bounds.
bool HeaderParser::parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
  return fail("its header is no valid JSON, from byte " + std::to_string(position) + " on");
}

// Three objects may begin: the header, its metadata, and the entry of a tensor. There is no fourth depth.
bool HeaderParser::start_object(std::size_t) {
  switch (place_) {
    case Place::kBefore: place_ = Place::kTensors; return true;
    case Place::kMetadata: place_ = Place::kMetadataKeys; return true;
    case Place::kTensor: place_ = Place::kFields; return true;
    default: return unexpected("an object");
  }
}

// Keys stand in three places only; of these the metadata takes any, once each.
bool HeaderParser::key(string_t& text) {
  if (place_ == Place::kTensors) return nameKey(text);
  if (place_ == Place::kFields) return fieldKey(text);
  if (header_.metadata.contains(text)) return fail("its metadata holds the key " + inQuotes(text) + " twice");
  metadataKey_ = std::move(text);
  place_ = Place::kMetadataValue;
  return true;
}

bool HeaderParser::nameKey(std::string& text) {
  if (text == kMetadataKey) {
    if (std::exchange(hasMetadata_, true)) return fail("its header holds \"__metadata__\" twice");
    place_ = Place::kMetadata;
    return true;
  }
  // JSON parsers differ in which of two equal keys they believe: readers could be made to see different
  // tensors.
  if (!names_.insert(text).second) return fail("its header holds tensor " + inQuotes(text) + " twice");
  tensor_ = TensorEntry{.name = std::move(text), .type = {}, .shape = {}, .begin = 0, .end = 0};
  hasDtype_ = hasShape_ = hasOffsets_ = false;
  offsetCount_ = 0;
  place_ = Place::kTensor;
  return true;
}

// In any order, each once.
bool HeaderParser::fieldKey(std::string_view text) {
  bool* seen = nullptr;
  Place next = place_;
  if (text == "dtype") {
    seen = &hasDtype_, next = Place::kDtype;
  } else if (text == "shape") {
    seen = &hasShape_, next = Place::kShape;
  } else if (text == "data_offsets") {
    seen = &hasOffsets_, next = Place::kOffsets;
  } else {
    return fail(subject() + " has the field " + inQuotes(text) + ", which the format does not know");
  }
  if (std::exchange(*seen, true)) return fail(subject() + " has the field " + inQuotes(text) + " twice");
  place_ = next;
  return true;
}

bool HeaderParser::string(string_t& text) {
  if (place_ == Place::kMetadataValue) {
    header_.metadata.emplace(std::move(metadataKey_), std::move(text));
    place_ = Place::kMetadataKeys;
    return true;
  }
  if (place_ != Place::kDtype) return unexpected("a string");
  std::optional<ElementType> type = elementTypeOf(text);
  if (!type)
    return fail("the dtype " + inQuotes(text) + " of tensor " + inQuotes(tensor_.name) + " is unknown to Treadle");
  tensor_.type = *type;
  place_ = Place::kFields;
  return true;
}

bool HeaderParser::start_array(std::size_t) {
  if (place_ == Place::kShape) {
    place_ = Place::kDimensions;
  } else if (place_ == Place::kOffsets) {
    place_ = Place::kOffsetNumbers;
  } else {
    return unexpected("an array");
  }
  return true;
}

// A dimension or an offset. Whether they make sense together is judged later, by checkTiling in header.cc.
bool HeaderParser::number_unsigned(number_unsigned_t value) {
  if (place_ == Place::kDimensions) {
    // Here and not later: a shape of a hundred million dimensions is never stored.
    if (tensor_.shape.size() == kMaxRank)
      return fail(subject() + " has more than " + std::to_string(kMaxRank) + " dimensions");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return unexpected(std::to_string(value));
    tensor_.shape.push_back(static_cast<int64_t>(value));
    return true;
  }
  if (place_ != Place::kOffsetNumbers) return unexpected("a number");
  if (offsetCount_ == 2) return fail(subject() + " are more than two numbers");
  (offsetCount_++ == 0 ? tensor_.begin : tensor_.end) = value;
  return true;
}

bool HeaderParser::end_array() {
  // A shape may be empty (one element); offsets are always a pair.
  if (place_ == Place::kOffsetNumbers && offsetCount_ != 2) return fail(subject() + " are not two numbers");
  place_ = Place::kFields;
  return true;
}

bool HeaderParser::end_object() {
  if (place_ == Place::kFields) return finishTensor();
  // Leaving the metadata, or the whole object, after which the JSON parser accepts nothing more.
  place_ = Place::kTensors;
  return true;
}

// An entry is complete with all three fields; none has a default.
bool HeaderParser::finishTensor() {
  const char* missing = !hasDtype_ ? "dtype" : !hasShape_ ? "shape" : !hasOffsets_ ? "data_offsets" : nullptr;
  if (missing != nullptr) return fail(subject() + " has no field \"" + missing + "\"");
  header_.tensors.push_back(std::move(tensor_));
  place_ = Place::kTensors;
  return true;
}

}  // namespace

Result<Header> parseEntries(std::string_view json) {
  HeaderParser parser;
  if (!nlohmann::json::sax_parse(json, &parser)) return dataLoss(parser.reason());
  return std::move(parser).header();
}

}  // namespace treadle::safetensors
