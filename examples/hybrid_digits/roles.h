#pragma once
// The distributed job: a master (rank 0), a parameter server (rank 1) and two trainers (ranks 2 and 3). The master
// makes the embedding bag on the parameter server and starts the training on both trainers; each of them looks
// embeddings up there, runs its replica of the linear layer, and steps the parameters of both. Called once, by main's
// thread.

#include "examples/hybrid_digits/options.h"

namespace hybrid {

// Plays the role of this process's rank until the job is over. Throws what its parts throw; treadle::PeerLostError
// names the worker that was lost.
void runRole(const Options& options);

}  // namespace hybrid
