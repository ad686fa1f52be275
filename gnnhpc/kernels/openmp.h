// Whether the compiler had OpenMP; without it every number of threads is one.

#pragma once

extern "C" int has_threads() {
#ifdef _OPENMP
  return 1;
#else
  return 0;
#endif
}
