#define _DEFAULT_SOURCE
#include "gf_pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Kernels of one step follow each other within microseconds: worth a short spin. Anything longer costs the battery. */
enum { SPIN_NANOSECONDS = 10000 };

static _Thread_local char error_text[GF_ERROR_BYTES];

void gf_set_error(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error_text, sizeof error_text, format, arguments);
  va_end(arguments);
}

const char *gf_error_text(void) { return error_text; }

int gf_online_cores(void) {
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  return cores < 1 ? 1 : cores > GF_MAX_THREADS ? GF_MAX_THREADS : (int)cores;
}

/* A gate counts how often it was opened; one thread waits at it. */
typedef struct {
  _Alignas(GF_ALIGNMENT) atomic_uint count;
  atomic_bool asleep;
  pthread_mutex_t mutex;
  pthread_cond_t wake;
} gate;

static void gate_init(gate *g) {
  atomic_init(&g->count, 0);
  atomic_init(&g->asleep, false);
  pthread_mutex_init(&g->mutex, NULL);
  pthread_cond_init(&g->wake, NULL);
}

/* Sequentially consistent on purpose: the opener writes count then reads asleep, the waiter writes asleep then reads
 * count, so at least one of them sees the other and no wake-up is lost. */
static void gate_open(gate *g) {
  atomic_fetch_add(&g->count, 1);
  if (!atomic_load(&g->asleep)) return;
  pthread_mutex_lock(&g->mutex);
  pthread_cond_signal(&g->wake);
  pthread_mutex_unlock(&g->mutex);
}

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  __asm__ __volatile__("yield");
#endif
}

static int64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void gate_wait(gate *g, unsigned seen, bool spin) {
  if (spin) {
    int64_t stop = nanoseconds() + SPIN_NANOSECONDS;
    do {
      for (int i = 0; i < 32; ++i) {
        if (atomic_load(&g->count) != seen) return;
        relax();
      }
    } while (nanoseconds() < stop);
  }
  pthread_mutex_lock(&g->mutex);
  atomic_store(&g->asleep, true);
  while (atomic_load(&g->count) == seen) pthread_cond_wait(&g->wake, &g->mutex);
  atomic_store(&g->asleep, false);
  pthread_mutex_unlock(&g->mutex);
}

typedef struct {
  gate go;
  pthread_t thread;
} worker;

static struct {
  worker workers[GF_MAX_THREADS]; /* worker of lane i at i; 0 stays unused */
  int lanes;                      /* the caller's and the live workers'; 0 before the first use */
  gate done;
  atomic_int pending;
  atomic_bool spin;
  bool stopping; /* written before the gates open, as the job is */
  gf_task task;  /* the job: read only by the workers whose gate was opened for it */
  void *closure;
  gf_parallel_env *env;
  gf_lane *job_lanes;
  int job_threads;
} pool;

static _Thread_local struct {
  gf_lane *lanes, *lane;
  gf_stack shared; /* the running kernel's, outside its tasks */
  int threads;
  bool inside; /* a task is running on this thread */
} here;

void gf_pool_enter(gf_lane *lanes, int threads) {
  here.lanes = lanes;
  here.lane = lanes;
  here.threads = threads;
  here.inside = false;
  lanes->stack.top = lanes->stack.base;
}

void gf_pool_leave(void) { memset(&here, 0, sizeof here); }

void gf_pool_share(char *base, size_t bytes) { here.shared = (gf_stack){base, base, base + bytes}; }

gf_stack *gf_pool_stack(void) {
  if (!here.lane) return NULL;
  return here.inside ? &here.lane->stack : &here.shared;
}

static int run_tasks(gf_task task, void *closure, gf_parallel_env *env, int first, int stride) {
  bool outer = here.inside;
  int code = 0;
  here.inside = true;
  for (int i = first; i < env->num_task && code == 0; i += stride) code = task(i, env, closure);
  here.inside = outer;
  return code;
}

static void *work(void *argument) {
  int index = (int)(intptr_t)argument;
  worker *self = &pool.workers[index];
  /* The C library allocates a thread's locals at their first use: here, and not in the first step. */
  error_text[0] = '\0';
  gate_open(&pool.done);
  for (unsigned seen = 0;; ++seen) { /* the gate was made with count 0, and opens once a job */
    gate_wait(&self->go, seen, pool.spin);
    if (pool.stopping) return NULL;
    gf_lane *lane = &pool.job_lanes[index];
    gf_pool_enter(lane, 1);
    error_text[0] = '\0';
    lane->code = run_tasks(pool.task, pool.closure, pool.env, index, pool.job_threads);
    if (lane->code) memcpy(lane->error, error_text, sizeof lane->error);
    gf_pool_leave();
    if (atomic_fetch_sub(&pool.pending, 1) == 1) gate_open(&pool.done);
  }
}

static int start_worker(int index) {
  gate_init(&pool.workers[index].go);
  sigset_t all, before; /* signals belong to the program's own threads */
  sigfillset(&all);
  unsigned seen = atomic_load(&pool.done.count);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int code = pthread_create(&pool.workers[index].thread, NULL, work, (void *)(intptr_t)index);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (code == 0) gate_wait(&pool.done, seen, false);
  return code;
}

int gf_pool_reserve(int threads) {
  if (pool.lanes == 0) {
    gate_init(&pool.done);
    pool.stopping = false;
    atomic_store(&pool.spin, true);
    pool.lanes = 1;
  }
  /* A spinning thread would hold a core that another one needs. */
  if (threads > pool.lanes && threads > gf_online_cores()) atomic_store(&pool.spin, false);
  for (; pool.lanes < threads; ++pool.lanes) {
    int code = start_worker(pool.lanes);
    if (code == 0) continue;
    gf_set_error("cannot start thread %d of %d: %s; ask for fewer threads", pool.lanes + 1, threads, strerror(code));
    return -1;
  }
  return 0;
}

void gf_pool_stop(void) {
  pool.stopping = true;
  for (int i = 1; i < pool.lanes; ++i) {
    gate_open(&pool.workers[i].go);
    pthread_join(pool.workers[i].thread, NULL);
  }
  pool.lanes = 0;
}

void gf_pool_forget(void) { pool.lanes = 0; }

int gf_pool_launch(gf_task task, void *closure, int num_task) {
  int all = here.inside || here.threads < 1 ? 1 : here.threads;
  gf_parallel_env env = {NULL, num_task > 0 ? num_task : all};
  int lanes = env.num_task < all ? env.num_task : all;
  if (lanes > pool.lanes) lanes = pool.lanes; /* fewer executors than asked for: same tasks, same results, slower */
  if (lanes <= 1) return run_tasks(task, closure, &env, 0, 1);

  pool.task = task;
  pool.closure = closure;
  pool.env = &env;
  pool.job_lanes = here.lanes;
  pool.job_threads = lanes;
  atomic_store(&pool.pending, lanes - 1);
  unsigned seen = atomic_load(&pool.done.count);
  for (int i = 1; i < lanes; ++i) gate_open(&pool.workers[i].go);
  int code = run_tasks(task, closure, &env, 0, lanes);
  gate_wait(&pool.done, seen, pool.spin);
  for (int i = 1; i < lanes && code == 0; ++i) {
    code = here.lanes[i].code;
    if (code) memcpy(error_text, here.lanes[i].error, sizeof error_text);
  }
  return code;
}
