#define _DEFAULT_SOURCE /* sigset_t */
#include "gf_pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "gf_cores.h"

#include "gf_step.h"

/* Kernels of one step follow each other within microseconds, and a sleeping core takes long to wake (seen: a quarter of
 * a step's time): during a step threads wait awake, this long at most. Between steps they sleep at once. */
enum { SPIN_NANOSECONDS = 1000000 };

/* A kernel's loop is cut into this many pieces per lane, taken one at a time: a lane that is held up, or slower than
 * the others, delays the kernel by one piece. */
enum { TASKS_A_LANE = 4 };

static _Thread_local char error_text[GF_ERROR_BYTES];

static _Thread_local int error_code;

/* One line, whatever names a file brought along: their control characters would reach the user's terminal. */
static void set_text(const char *format, va_list arguments) {
  vsnprintf(error_text, sizeof error_text, format, arguments);
  for (char *at = error_text; *at; ++at)
    if ((unsigned char)*at < ' ' || *at == 0x7f) *at = '?';
}

void gf_set_error(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  set_text(format, arguments);
  va_end(arguments);
  error_code = 0;
}

int gf_fail(int code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  set_text(format, arguments);
  va_end(arguments);
  return error_code = code;
}

int gf_failure(void) { return error_code; }
const char *gf_error_text(void) { return error_text; }

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

/* Awake while `running` holds, for a time; then asleep. */
static void gate_wait(gate *g, unsigned seen, atomic_bool *running) {
  int64_t stop = nanoseconds() + SPIN_NANOSECONDS;
  while (atomic_load(running) && nanoseconds() < stop)
    for (int i = 0; i < 32; ++i) {
      if (atomic_load(&g->count) != seen) return;
      relax();
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

typedef struct { /* tasks that a lane takes first, and others when they have none left */
  _Alignas(GF_ALIGNMENT) atomic_int next;
  int end;
} share;

enum { CLOSED = -2 * GF_MAX_THREADS }; /* added to `inside`: nobody may join any more */

static struct {
  worker workers[GF_MAX_THREADS]; /* worker of lane i at i; 0 stays unused */
  share shares[GF_MAX_THREADS];
  int lanes;         /* the caller's and the live workers'; 0 before the first use */
  atomic_int inside; /* workers in the open job; below zero while none is open */
  gate done;         /* opened by the last worker to leave a closed job */
  atomic_bool running; /* a step is, and there is a core for every thread */
  atomic_bool stopping;
  gf_task task; /* the job: read only by workers that have joined it */
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

static void enter(gf_lane *lanes, int threads) {
  here.lanes = lanes;
  here.lane = lanes;
  here.threads = threads;
  here.inside = false;
  lanes->stack.top = lanes->stack.base;
}

static void leave(void) { memset(&here, 0, sizeof here); }

void gf_pool_enter(gf_lane *lanes, int threads) {
  enter(lanes, threads);
  gf_stay_on_big_cores(threads - 1); /* with more threads than big cores, this one too has to find its own */
  if (threads <= 1 || threads > gf_online_cores()) return; /* one that waits awake would hold up another */
  atomic_store(&pool.running, true);
  for (int i = 1; i < threads && i < pool.lanes; ++i) gate_open(&pool.workers[i].go); /* awake when work comes */
}

void gf_pool_leave(void) {
  atomic_store(&pool.running, false);
  gf_come_back_from_big_cores();
  leave();
}

void gf_pool_share(char *base, size_t bytes) { here.shared = (gf_stack){base, base, base + bytes}; }

gf_stack *gf_pool_stack(void) {
  if (!here.lane) return NULL;
  return here.inside ? &here.lane->stack : &here.shared;
}

/* The next task for this lane: of its own share, then of what the others have left. -1 when all are taken. */
static int take_task(int lane) {
  for (int turn = 0; turn < pool.job_threads; ++turn) {
    share *from = &pool.shares[(lane + turn) % pool.job_threads];
    if (atomic_load_explicit(&from->next, memory_order_relaxed) >= from->end) continue;
    int task = atomic_fetch_add_explicit(&from->next, 1, memory_order_relaxed);
    if (task < from->end) return task;
  }
  return -1;
}

static int run_tasks(int lane) {
  int code = 0, task;
  here.inside = true;
  while (code == 0 && (task = take_task(lane)) >= 0) code = pool.task(task, pool.env, pool.closure);
  here.inside = false;
  return code;
}

/* All tasks on this thread, which may itself be inside one. */
static int run_here(gf_task task, void *closure, gf_parallel_env *env) {
  bool outer = here.inside;
  int code = 0;
  here.inside = true;
  for (int i = 0; i < env->num_task && code == 0; ++i) code = task(i, env, closure);
  here.inside = outer;
  return code;
}

/* A job is joined while it is open, so that its caller need not wait for a worker that wakes up late. */
static bool join_job(void) {
  int inside = atomic_load(&pool.inside);
  while (inside >= 0)
    if (atomic_compare_exchange_weak(&pool.inside, &inside, inside + 1)) return true;
  return false;
}

static void leave_job(void) {
  if (atomic_fetch_sub(&pool.inside, 1) == CLOSED + 1) gate_open(&pool.done);
}

static void close_job(void) {
  unsigned seen = atomic_load(&pool.done.count);
  if (atomic_fetch_add(&pool.inside, CLOSED) > 0) gate_wait(&pool.done, seen, &pool.running);
}

static void *work(void *argument) {
  int index = (int)(intptr_t)argument;
  worker *self = &pool.workers[index];
  /* The C library allocates a thread's locals at their first use: here, and not in the first step. */
  error_text[0] = '\0';
  gf_stay_on_big_cores(index);
  gate_open(&pool.done);
  for (unsigned seen = 0;; ++seen) { /* the gate was made with count 0; a missed job is caught up with in vain */
    gate_wait(&self->go, seen, &pool.running);
    if (atomic_load(&pool.stopping)) return NULL;
    if (!join_job()) continue;
    if (index < pool.job_threads) {
      gf_lane *lane = &pool.job_lanes[index];
      enter(lane, 1);
      error_text[0] = '\0';
      int code = run_tasks(index);
      if (code) { /* a worker may join the same job again: it must not hide this */
        lane->code = code;
        memcpy(lane->error, error_text, sizeof lane->error);
      }
      leave();
    }
    leave_job();
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
  if (code == 0) gate_wait(&pool.done, seen, &pool.running);
  return code;
}

int gf_pool_reserve(int threads) {
  if (pool.lanes == 0) {
    gate_init(&pool.done);
    atomic_store(&pool.inside, CLOSED);
    atomic_store(&pool.stopping, false);
    atomic_store(&pool.running, false);
    pool.lanes = 1;
  }
  for (; pool.lanes < threads; ++pool.lanes) {
    int code = start_worker(pool.lanes);
    if (code == 0) continue;
    gf_fail(GF_ERROR_MEMORY, "cannot start thread %d of %d: %s; ask for fewer threads", pool.lanes + 1, threads,
            strerror(code));
    return -1;
  }
  return 0;
}

void gf_pool_stop(void) {
  atomic_store(&pool.stopping, true);
  for (int i = 1; i < pool.lanes; ++i) {
    gate_open(&pool.workers[i].go);
    pthread_join(pool.workers[i].thread, NULL);
  }
  pool.lanes = 0;
}

void gf_pool_forget(void) { pool.lanes = 0; }

/* Equal shares, in rising order, so that a lane meets the same part of every tensor in one kernel after the other. */
static void share_out(int tasks, int lanes) {
  for (int i = 0, next = 0; i < lanes; ++i) {
    atomic_store_explicit(&pool.shares[i].next, next, memory_order_relaxed);
    next = pool.shares[i].end = (int)((int64_t)tasks * (i + 1) / lanes);
  }
}

int gf_pool_launch(gf_task task, void *closure, int num_task) {
  int all = here.inside || here.threads < 1 ? 1 : here.threads;
  if (all > pool.lanes) all = pool.lanes; /* fewer executors than asked for: same results, slower */
  gf_parallel_env env = {NULL, num_task > 0 ? num_task : all > 1 ? all * TASKS_A_LANE : 1};
  if (all <= 1) return run_here(task, closure, &env);

  pool.task = task;
  pool.closure = closure;
  pool.env = &env;
  pool.job_lanes = here.lanes;
  pool.job_threads = all;
  share_out(env.num_task, all);
  for (int i = 1; i < all; ++i) here.lanes[i].code = 0;
  atomic_store(&pool.inside, 0);
  for (int i = 1; i < all; ++i) gate_open(&pool.workers[i].go);
  int code = run_tasks(0);
  close_job();
  for (int i = 1; i < all && code == 0; ++i) {
    code = here.lanes[i].code;
    if (code) memcpy(error_text, here.lanes[i].error, sizeof error_text);
  }
  return code;
}
