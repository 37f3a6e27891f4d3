/* The thread pool by itself: uneven tasks each run once, on one lane at a time, and a failure comes out. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "gf_pool.h"

enum { MOST_TASKS = 64, MOST_LANES = 8, SCRATCH = 64, ROUNDS = 300, NONE = -1, FAILURE = 5, SHARED_LANE = 7 };
static char scratch[MOST_LANES][SCRATCH];
static gf_lane lanes[MOST_LANES];
static atomic_int ran[MOST_TASKS], busy[MOST_LANES];

static int task(int id, gf_parallel_env *env, void *closure) {
  (void)env;
  long lane = (gf_pool_stack()->base - scratch[0]) / SCRATCH;
  if (atomic_exchange(&busy[lane], 1)) return SHARED_LANE;
  for (volatile int i = 0; i < id * 37 % 101 * 20; ++i) continue;
  atomic_fetch_add(&ran[id], 1);
  atomic_store(&busy[lane], 0);
  return *(int *)closure == id ? FAILURE : 0;
}

static int launch(int threads, int asked, int failing) {
  memset(ran, 0, sizeof ran);
  gf_pool_enter(lanes, threads);
  int code = gf_pool_launch(task, &failing, asked);
  gf_pool_leave();
  if (failing != NONE) return code != FAILURE;
  int count = 0;
  for (int i = 0; i < MOST_TASKS; ++i) {
    if (ran[i] > 1) return 1;
    count += ran[i];
  }
  return code || (asked ? count != asked : count < threads) || ran[0] != 1;
}

int main(void) {
  for (int i = 0; i < MOST_LANES; ++i) lanes[i].stack = (gf_stack){scratch[i], scratch[i], scratch[i] + SCRATCH};
  const int threads[] = {2, 1, 3, MOST_LANES, 2}; /* the last: fewer than there are workers */
  for (int at = 0; at < 5; ++at) {
    if (gf_pool_reserve(threads[at])) return 1;
    for (int round = 0; round < ROUNDS; ++round) {
      if (launch(threads[at], MOST_TASKS, NONE)) return 2;
      if (launch(threads[at], 1, NONE)) return 3;
      if (launch(threads[at], 0, NONE)) return 4;
      if (launch(threads[at], MOST_TASKS, round % MOST_TASKS)) return 5;
    }
  }
  gf_pool_stop();
  puts("ok");
  return 0;
}
