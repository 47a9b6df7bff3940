#pragma once
// What both programs share: the job of equal workers that they are.

#include <treadle/group.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>

namespace data_parallel {

// The main function of a program after its options were added to `app`. Joins the job and calls `train` with a group of
// all its workers. Returns the exit code: 0 when `train` returned true, 1 when it returned false or failed, which is
// printed; 2 when an option is wrong.
int runJob(CLI::App& app, int argc, char** argv, const std::function<bool(const treadle::ProcessGroup& group)>& train);

}  // namespace data_parallel
