#include "treadle/cli/plan_help.h"

namespace treadle::cli {

const char* const kPlanHelp = R"(Examples:
  treadle plan                                        an all-reduce of 1 MiB among 4 members
  treadle plan --members 64 --size 400                what 100 floats cost in a large group
  treadle plan --operation broadcast --size 40000000
  treadle plan --operation allGather --members 64 --type uint8 --size 262144     blocks of 4 KiB
  treadle plan --type bfloat16 --algorithm direct     with that algorithm forced, as GroupOptions::algorithm does
  treadle plan --members 8 --hosts 2 --network-latency 25 --network-bandwidth 10000
  treadle plan --measure --members 8                  by the costs of this machine
  treadle run -n 4 -- treadle plan --measure          by those of a job, for its members and hosts
  treadle plan --workers 8 --servers 4 --bandwidth 25Gbit --bytes 100000000    what CPU machines that sum would gain
  treadle plan --workers 3 --servers 1 --bandwidth 1Gbit,1Gbit,500Mbit --server-bandwidth 10Gbit --model gpt2
  treadle plan --explain times --bandwidth 10Gbit     where the time of a run with TREADLE_RECORD=times has gone
  treadle plan --machine machine.json --bytes 100000000    how the GPUs of one machine would sum

Prints for each algorithm what a member sends, how many messages wait for one another and how long it takes by
the costs of links, or why it cannot do the operation; an arrow marks the one that a group takes.

A job measures its costs when it starts. Its rank 0 prints them as these options with TREADLE_LOG=info. With
--measure this command does the same: under a launcher as the workers of a job, else with a second process that
it starts here. Without it nothing is started or sent. Latencies and the cost of a message are in microseconds,
bandwidths in MB (10^6 bytes) per second.

Operations: allReduce, reduce, reduceScatter, broadcast, allGather, gather, scatter, allToAll (of equal blocks),
barrier. --size is that of the whole data in bytes: of a reduction and of allToAll what each member gives, else all
blocks together.

--workers, --servers, --bytes, --model, --tensors and --server-bandwidth ask for the plan of a summation service: how
it divides the bytes of one sum among all machines, what each of them moves, and how long that takes beside a ring and
parameter servers. Workers of one host count as one, as they sum among themselves first. --bandwidth is then that of
each worker's network, one for all or one for each with commas between them: 25 (MB/s), 200Mbit, 10Gbit. A file of
--tensors has a line for each tensor, which begins with its bytes.

A run whose workers and servers have TREADLE_RECORD=FOLDER in their environment leaves a file in that folder for each
machine and summation service; take an empty folder for each run. --explain prints where the time of their sums has
gone, also with the files of some machines only, and with --bandwidth how that compares with the least time that the
network allows.

--machine reads a file that describes one machine with several GPUs. It prints the strategies to sum among these GPUs,
the bytes that each link carries, and how long that takes. --bytes is the size of each GPU's data. Nothing runs on a
GPU. A bandwidth is in GB/s (10^9 bytes) per direction:
  {"switches": [{"name": "s0", "uplink": 10}, {"name": "s1", "uplink": 10}],
   "gpus":     [{"name": "g0", "switch": "s0", "link": 13.1}, {"name": "g1", "switch": "s1", "link": 13.1}],
   "nics":     [{"name": "n0", "switch": "s0", "link": 12.5}],
   "nvlinks":  [{"gpus": ["g0", "g1"], "link": 25}],
   "memory":   60}
nics, nvlinks, memory and the link of a NIC may be left out. A NIC without a switch is at the CPU. For a GPU at the CPU
describe a switch of its own, with the GPU's link as its uplink. An entry of nvlinks is a link between each two of its
GPUs.

Exit code 2: wrong usage, a forced algorithm that cannot do the operation, or a wrong file of --machine; 1: it could not
measure, or the folder of --explain has no times, or cannot be read.)";

}  // namespace treadle::cli
