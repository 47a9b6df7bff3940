#pragma once
// The threads of OpenMP in which libtorch computes parts of an operator. When the operator is done, they look for the
// next one without a pause, for some milliseconds (GOMP_SPINCOUNT), and each needs a core for it.

namespace treadle::ddp {

// Ends those of the calling thread, so that others have their cores. Its next operator that needs them starts new ones,
// which takes some ten microseconds each. The program's own parallel regions have the same threads. Does nothing within
// a parallel region, in a process that was forked, where these threads are not, and where libtorch has no OpenMP of
// version 5.0. Any thread.
void endIdleThreads();

}  // namespace treadle::ddp
