#pragma once
// A second process of the same program, for what is measured between two processes without any library.

#include <sys/types.h>

#include <string>
#include <vector>

namespace bench {

// Starts this program again with `arguments` alone; it finds `sockets` as descriptors 3, 4, ... and nothing else of
// ours. It should end when its sockets do. Throws std::system_error.
pid_t startSelf(const std::vector<std::string>& arguments, const std::vector<int>& sockets);

}  // namespace bench
