/* Prints, for each of ARGUMENT threads, the cores that it may run on inside a task, as bits. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "gf_pool.h"

static unsigned long masks[GF_MAX_THREADS];
static atomic_int inside;

static int look(int task, gf_parallel_env *env, void *closure) {
  (void)closure;
  cpu_set_t set;
  sched_getaffinity(0, sizeof set, &set);
  for (int core = 0; core < 64; ++core)
    if (CPU_ISSET(core, &set)) masks[task] |= 1ul << core;
  atomic_fetch_add(&inside, 1);
  while (atomic_load(&inside) < env->num_task) sched_yield(); /* so that every thread takes one */
  return 0;
}

int main(int count, char **arguments) {
  int threads = count > 1 ? atoi(arguments[1]) : 1;
  static gf_lane lanes[GF_MAX_THREADS];
  if (gf_pool_reserve(threads)) return 1;
  gf_pool_enter(lanes, threads);
  int code = gf_pool_launch(look, NULL, threads);
  gf_pool_leave();
  for (int i = 0; i < threads; ++i) printf("%lu\n", masks[i]);
  gf_pool_stop();
  return code;
}
