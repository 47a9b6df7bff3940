#pragma once
// Whether all workers train the same, and whether both trainings have the same result. Functions without state; they
// throw std::runtime_error with one sentence that says what to do.

#include <map>
#include <string>

#include "examples/char_gpt/corpus.h"
#include "examples/char_gpt/options.h"

namespace char_gpt {

// The options and the text that decide about the result of a training, the text by its size and a hash.
std::string describe(const Options& options, const Corpus& corpus);

// `trainings`: the description of each worker, by its name. Throws when they differ: the replicas would train on other
// batches than one process.
void checkSame(const std::map<std::string, std::string>& trainings);

// `difference`: of the two validation losses. Throws when it is larger than rounding explains: 1e-10 in float64, in
// float32 0.001, which a long training or a high learning rate can exceed.
void checkDifference(double difference, bool float64);

}  // namespace char_gpt
