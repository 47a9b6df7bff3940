#pragma once
// Environment variables of launchers as values, with errors that name variable and value. Pure functions of the
// environment; read once, when a program starts.

#include <optional>
#include <string>
#include <string_view>

#include "treadle/core/cluster/launch.h"

namespace treadle::cluster {

inline constexpr std::string_view kHowToStart =
    "start the program through `treadle run -n 4 -- program`, torchrun, srun or mpirun, or set RANK, WORLD_SIZE, "
    "MASTER_ADDR and MASTER_PORT";

// A value as it may stand in a message: the environment may hold anything, of any length.
std::string quoted(std::string_view value);

// InvalidArgument: the variable is `value`, not what was `expected`.
Status wrong(std::string_view name, std::string_view value, std::string_view expected);

// A variable that must be there. FailedPrecondition naming it and `given`, because of which it must.
Result<std::string> required(const char* name, std::string_view given);

// Digits and a minus sign only, all of the text: " 1", "+1" and "4x" are typing errors that must not pass.
Result<int> numberIn(const char* name, std::string_view text, int lowest, int highest);

// Enough to keep blanks, control characters and quotes out of addresses; whether the host exists, connecting tells.
bool isHost(std::string_view text);
Result<std::string> hostIn(const char* name);
Result<uint16_t> portIn(const char* name, std::string_view text);

// Rank and world size from two variables; the rank has to lie in the world.
Status readPlace(const char* rankName, const char* worldName, Launch& launch);

// "gpu[003-010,12],login" begins with "gpu003": the first of a list of hosts as Slurm writes it. Empty when it is none.
std::string firstHost(std::string_view list);

}  // namespace treadle::cluster
