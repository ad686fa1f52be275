// Whether the compiler had OpenMP; without it every number of threads is one.

#pragma once

#ifdef _OPENMP
#include <omp.h>
#endif

extern "C" int has_threads() {
#ifdef _OPENMP
  return 1;
#else
  return 0;
#endif
}

// How many threads the calling thread's loops have from now on; those of other threads keep theirs.
extern "C" void set_own_threads(int count) {
#ifdef _OPENMP
  omp_set_num_threads(count);
#else
  (void)count;
#endif
}
