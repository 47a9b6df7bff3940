#pragma once
// What `treadle plan --help` prints below the options.

namespace treadle::cli {

extern const char* const kPlanHelp;

}  // namespace treadle::cli
