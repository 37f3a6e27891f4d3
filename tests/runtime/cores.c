/* What gf_cores.c finds in the folder that it was compiled with, and where the calling thread may then run. */
#define _GNU_SOURCE
#include "gf_cores.h"

#include <sched.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int default_threads(void) { return gf_default_threads(); }

/* The thread's cores as bits: before, on the big cores as lane `lane`, and after. */
EXPORT void places(int lane, unsigned long *masks) {
  cpu_set_t set;
  for (int turn = 0; turn < 3; ++turn) {
    if (turn == 1) gf_stay_on_big_cores(lane);
    if (turn == 2) gf_come_back_from_big_cores();
    masks[turn] = 0;
    sched_getaffinity(0, sizeof set, &set);
    for (int core = 0; core < 64; ++core)
      if (CPU_ISSET(core, &set)) masks[turn] |= 1ul << core;
  }
}
