#pragma once
// Which share of the bytes each machine sums, so that all workers have all sums as soon as the network allows.
// Source: Y. Jiang et al., "A Unified Architecture for Accelerating Distributed DNN Training in Heterogeneous GPU/CPU
// Clusters", OSDI 2020, equations 1 and 2, generalised to machines with different bandwidths. Pure.
//
// A sum of M bytes among n workers: each worker sends every byte to the machine that sums it, and that machine sends
// the sum to every worker. A worker sums its share without sending its own addend. So with shares x (workers) and y
// (servers), each way,
//
//     worker i moves  M (1 + (n - 2) x_i)  bytes,    server j moves  M n y_j  bytes.
//
// All machines finish within t if these are at most t B_i and t C_j. The shares add up to 1, so the least t is
//
//     t* = max( M / min B,  2 n (n - 1) M / (n sum B + (n - 2) sum C) ),
//
// and where all bandwidths are B and there are k <= n servers, t* = 2 n (n - 1) M / ((n^2 + k n - 2 k) B).

#include "treadle/core/summation/bandwidths.h"

namespace treadle::summation {

// Parts of all bytes, which add up to 1.
using Shares = PerMachine;

// Those that take the least time. Where several do, servers sum as much as they can.
Shares bestShares(const Bandwidths& bandwidths);

// Plain parameter servers: all bytes on the servers (at least one), by their bandwidths.
Shares serverShares(const Bandwidths& bandwidths);

// Of a service: the best ones; in an asynchronous one the servers sum all, if there are any, as workers go at their own
// pace and none should wait for a slow one that sums.
Shares serviceShares(const Bandwidths& bandwidths, bool isAsynchronous);

// Likewise, where some machines, numbered workers first, are lost: servers, whose shares are 0.
Shares serviceSharesWithout(const Bandwidths& bandwidths, bool isAsynchronous, const std::vector<bool>& isLost);

// Bytes that each machine sends, and receives, in a sum of `bytes` per worker. 0 for a worker alone.
PerMachine traffic(const Shares& shares, double bytes);

// Seconds until the last machine has moved its traffic.
double seconds(const Shares& shares, const Bandwidths& bandwidths, double bytes);

// t* above: no shares take less.
double leastSeconds(const Bandwidths& bandwidths, double bytes);

// A ring all-reduce among the workers: each sends 2 (n - 1) / n of the bytes, and all go at the pace of the slowest
// (P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
double ringSeconds(const Bandwidths& bandwidths, double bytes);

}  // namespace treadle::summation
