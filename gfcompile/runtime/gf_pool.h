/* The library's thread pool, and what each of its executors owns. Internal: never exported.
 *
 * A *lane* is an executor's private scratch. Lane 0 is the calling thread, lanes 1.. are the workers. Nothing here
 * takes the library's lock: gf_runtime.c holds it around reserve, stop and every run, so that one launch is in flight
 * at most. */
#ifndef GF_POOL_H
#define GF_POOL_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#define GF_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define GF_PRINTF(text, first)
#endif

enum { GF_MAX_THREADS = 256, GF_ALIGNMENT = 64, GF_ERROR_BYTES = 512 };

typedef struct { /* bump pointer: base <= top <= end */
  char *base, *top, *end;
} gf_stack;

typedef struct {
  _Alignas(GF_ALIGNMENT) gf_stack stack;
  int code; /* of the last launch on this lane */
  char error[GF_ERROR_BYTES];
} gf_lane;

typedef struct { /* TVM's TVMParallelGroupEnv */
  void *sync_handle;
  int32_t num_task;
} gf_parallel_env;

typedef int (*gf_task)(int task_id, gf_parallel_env *env, void *closure);

/* Make sure that `threads` executors exist, the caller included. 0, or -1 with an error text. */
int gf_pool_reserve(int threads);
/* End and join all workers. */
void gf_pool_stop(void);
/* In a child after fork(): its workers do not exist, its locks are in an unknown state. */
void gf_pool_forget(void);

/* Between enter and leave, launches of this thread use these lanes. */
void gf_pool_enter(gf_lane *lanes, int threads);
void gf_pool_leave(void);
/* What the next kernel of this thread may allocate outside its tasks: a piece of the arena. */
void gf_pool_share(char *base, size_t bytes);
/* Where this thread allocates now: its lane's stack inside a task, the shared piece outside. NULL outside a run. */
gf_stack *gf_pool_stack(void);

/* Run all tasks, each on one lane, no lane two at a time; which lane takes which is left to chance. num_task 0 leaves
 * their number to the pool. A launch inside a task runs on the spot, num_task 0 then meaning 1. */
int gf_pool_launch(gf_task task, void *closure, int num_task);

/* The failure of this thread. gf_fail returns the gf_code; gf_set_error leaves it to be told by who returns. */
int gf_fail(int code, const char *format, ...) GF_PRINTF(2, 3);
void gf_set_error(const char *format, ...) GF_PRINTF(1, 2);
const char *gf_error_text(void);
/* The code of the last gf_fail, 0 after gf_set_error. */
int gf_failure(void);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
