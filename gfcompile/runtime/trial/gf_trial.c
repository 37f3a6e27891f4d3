#include "gf_trial.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gf_cores.h"
#include "gf_device.h"
#include "gf_memory.h"
#include "gf_pool.h"
#include "gf_trial_cache.h"
#include "gf_trial_json.h"
#include "gf_trial_values.h"

/* Painted around every operand, so that a kernel that writes a little outside is told from one that computes badly.
 * Outputs are painted too: 0xff bytes are a NaN, and no bool. */
enum { GUARD = 256, PAINT = 0xff };

enum { CANDIDATE, REFERENCE, KERNELS };

/* Runs of one kernel in a turn: each with cold caches, or queued for a GPU, few enough for its driver's queue. */
enum { MOST_RUNS = 4, MOST_QUEUED = 1000 };

typedef struct {
  int operands;
  char **blocks[KERNELS]; /* on the device: the allocations; an input's is in both lists */
  void **places[KERNELS]; /* a guard's length after their beginnings: what the kernels get; then these two: */
  void *shared[KERNELS];  /* workspaces outside tasks, on the device */
  void *prepared[KERNELS];
  char *host[KERNELS];    /* one operand with its guards, on its way to or from the device */
  char *scratch;
  gf_lane *lanes;
  int threads;
  char *other; /* what other kernels would have brought to the caches */
  size_t other_bytes;
  char failure[1024];
} trial;

static const gf_trial_kernel *kernel(int which) {
  return which == CANDIDATE ? &gf_trial_candidate : &gf_trial_reference;
}

static int fail(trial *t, const char *format, ...) GF_PRINTF(2, 3);
static int fail(trial *t, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(t->failure, sizeof t->failure, format, arguments);
  va_end(arguments);
  return -1;
}

static size_t operand_bytes(int index) { return gf_trial_bytes(&gf_trial_operands[index]); }

static size_t block_bytes(int index) { return gf_align_up(operand_bytes(index)) + 2 * GUARD; }

static int is_output(int index) { return gf_trial_operands[index].is_output; }

/* An operand as it is before a kernel runs, guards and all. */
static int paint(trial *t, int which, int index) {
  char *host = t->host[which];
  memset(host, PAINT, block_bytes(index));
  if (!is_output(index)) gf_trial_fill(&gf_trial_operands[index], index + 1, host + GUARD);
  if (gf_device_upload(t->blocks[which][index], host, block_bytes(index))) return fail(t, "%s", gf_error_text());
  return 0;
}

/* An operand with its guards as it is now, in t->host[which]. */
static int fetch(trial *t, int which, int index) {
  if (gf_device_download(t->host[which], t->blocks[which][index], block_bytes(index)) || gf_device_finish())
    return fail(t, "%s", gf_error_text());
  return 0;
}

static int prepare_operands(trial *t) {
  size_t largest = 0;
  for (int index = 0; index < t->operands; ++index)
    if (block_bytes(index) > largest) largest = block_bytes(index);
  for (int which = 0; which < KERNELS; ++which) {
    t->host[which] = gf_allocate(largest, "operands");
    t->blocks[which] = gf_allocate((size_t)t->operands * sizeof(char *), "operands");
    t->places[which] = gf_allocate((size_t)(t->operands + 2) * sizeof(void *), "operands");
    t->shared[which] = gf_device_allocate(kernel(which)->shared, "workspace");
    t->prepared[which] = gf_device_allocate(kernel(which)->prepared, "prepared weights");
    if (!t->host[which] || !t->blocks[which] || !t->places[which] || !t->shared[which] || !t->prepared[which])
      return fail(t, "%s", gf_error_text());
    t->places[which][t->operands] = t->shared[which];
    t->places[which][t->operands + 1] = t->prepared[which];
  }
  for (int index = 0; index < t->operands; ++index)
    for (int which = 0; which < KERNELS; ++which) {
      int is_shared = which != CANDIDATE && !is_output(index);
      char *block = is_shared ? t->blocks[CANDIDATE][index] : gf_device_allocate(block_bytes(index), "operand");
      if (!block) return fail(t, "%s", gf_error_text());
      t->blocks[which][index] = block;
      t->places[which][index] = block + GUARD;
      if (!is_shared && paint(t, which, index)) return -1;
    }
  return 0;
}

/* As gf_runtime.c does for a step. */
static int prepare_threads(trial *t) {
  size_t each = gf_trial_candidate.each > gf_trial_reference.each ? gf_trial_candidate.each : gf_trial_reference.each;
  size_t bytes = gf_align_up(each);
  t->threads = gf_device_is_host ? gf_default_threads() : 1;
  t->lanes = gf_allocate((size_t)t->threads * sizeof *t->lanes, "threads");
  t->scratch = t->lanes ? gf_allocate((size_t)t->threads * bytes, "scratch") : NULL;
  if (!t->scratch || gf_pool_reserve(t->threads)) return fail(t, "%s", gf_error_text());
  for (int i = 0; i < t->threads; ++i) {
    char *base = t->scratch + (size_t)i * bytes;
    t->lanes[i].stack = (gf_stack){base, base, base + bytes};
  }
  t->other_bytes = gf_device_is_host ? gf_trial_cache_bytes() : 0;
  t->other = gf_allocate(t->other_bytes, "what fills the caches");
  return t->other ? 0 : fail(t, "%s", gf_error_text());
}

static void release(trial *t) {
  gf_pool_stop();
  for (int which = 0; which < KERNELS; ++which) {
    for (int index = 0; t->blocks[which] && index < t->operands; ++index)
      if (which == CANDIDATE || is_output(index)) gf_device_free(t->blocks[which][index]);
    gf_device_free(t->shared[which]);
    gf_device_free(t->prepared[which]);
  }
  gf_device_close();
  for (int which = 0; which < KERNELS; ++which) {
    free(t->host[which]);
    free(t->blocks[which]);
    free(t->places[which]);
  }
  free(t->scratch);
  free(t->lanes);
  free(t->other);
}

static int call(trial *t, int which, int (*function)(void *const *)) {
  gf_pool_share(t->shared[which], kernel(which)->shared);
  int code = function(t->places[which]);
  if (!code) return 0;
  const char *text = gf_error_text()[0] ? gf_error_text() : "it gave no text";
  return fail(t, "the %s failed with code %d: %s", kernel(which)->name, code, text);
}

static int run(trial *t, int which) { return call(t, which, kernel(which)->run); }

static int prepare(trial *t) {
  for (int which = 0; which < KERNELS; ++which)
    if (kernel(which)->prepare && call(t, which, kernel(which)->prepare)) return -1;
  return 0;
}

/* Until the device has done what was asked of it: its failures are told here. */
static int finish(trial *t, int which) {
  return gf_device_finish() ? fail(t, "the %s failed: %s", kernel(which)->name, gf_error_text()) : 0;
}

static int is_painted(const char *from, const char *to) {
  for (; from < to; ++from)
    if ((unsigned char)*from != PAINT) return 0;
  return 1;
}

static int check_guards(trial *t, int which) {
  for (int index = 0; index < t->operands; ++index) {
    const char *block = t->host[which], *place = block + GUARD;
    if (fetch(t, which, index)) return -1;
    if (!is_painted(block, place) || !is_painted(place + operand_bytes(index), block + block_bytes(index)))
      return fail(t, "the %s wrote outside operand %d", kernel(which)->name, index);
  }
  return 0;
}

/* Runs both on freshly painted outputs, and raises *error to the worst output's. */
static int compare(trial *t, double *error) {
  for (int index = 0; index < t->operands; ++index)
    for (int which = 0; which < KERNELS; ++which)
      if (is_output(index) && paint(t, which, index)) return -1;
  for (int which = KERNELS; which-- > 0;)
    if (run(t, which) || finish(t, which) || check_guards(t, which)) return -1;
  for (int index = 0; index < t->operands; ++index) {
    if (!is_output(index)) continue;
    if (fetch(t, CANDIDATE, index) || fetch(t, REFERENCE, index)) return -1;
    const gf_trial_operand *operand = &gf_trial_operands[index];
    double found = gf_trial_error(operand, t->host[CANDIDATE] + GUARD, t->host[REFERENCE] + GUARD);
    if (found < 0) return fail(t, "operand %d has no finite value to compare with", index);
    if (found > *error) *error = found;
  }
  return 0;
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int run_cold(trial *t, int which, long runs, double *seconds) {
  *seconds = 0;
  for (long i = 0; i < runs; ++i) {
    if (gf_trial_make_cold(t->other, t->other_bytes, t->places[which][0], operand_bytes(0), t->threads))
      return fail(t, "%s", gf_error_text());
    double start = now();
    if (run(t, which)) return -1;
    *seconds += now() - start;
  }
  return 0;
}

/* Queued one after the other, as in a step: a launch and a wait for each would take longer than most kernels. Caches
 * are warm then; a GPU's are small. */
static int run_queued(trial *t, int which, long runs, double *seconds) {
  double start = now();
  for (long i = 0; i < runs; ++i)
    if (run(t, which)) return -1;
  if (finish(t, which)) return -1;
  *seconds = now() - start;
  return 0;
}

static int run_block(trial *t, int which, long runs, double *seconds) {
  return (gf_device_is_host ? run_cold : run_queued)(t, which, runs, seconds);
}

/* How many runs a block holds; finding out is the warm-up. */
static int count_runs(trial *t, int which, double block_seconds, long *runs) {
  double seconds = 0;
  long most = gf_device_is_host ? MOST_RUNS : MOST_QUEUED;
  for (*runs = 1;; *runs *= 2) {
    if (run_block(t, which, *runs, &seconds)) return -1;
    if (seconds >= block_seconds / 2 || *runs >= most) break;
  }
  double wanted = ceil((double)*runs * block_seconds / seconds);
  *runs = wanted < 1 ? 1 : wanted > (double)most ? most : (long)wanted;
  return 0;
}

/* seconds[which][turn]. Who begins changes from turn to turn. */
static int time_in_turn(trial *t, int repeats, double block_seconds, double *seconds[KERNELS]) {
  long runs[KERNELS];
  for (int which = 0; which < KERNELS; ++which)
    if (count_runs(t, which, block_seconds, &runs[which])) return -1;
  for (int turn = 0; turn < repeats; ++turn)
    for (int place = 0; place < KERNELS; ++place) {
      int which = (turn + place) % KERNELS;
      if (run_block(t, which, runs[which], &seconds[which][turn])) return -1;
      seconds[which][turn] /= (double)runs[which];
    }
  return 0;
}

/* The second comparison finds a kernel that needs what an earlier run left behind, or whose threads are in a race. */
static int measure(trial *t, int repeats, double block_seconds, double *error, double *seconds[KERNELS]) {
  *error = 0;
  if (gf_device_open() || gf_device_enter()) return fail(t, "%s", gf_error_text());
  if (prepare_operands(t) || prepare_threads(t)) return -1;
  gf_pool_enter(t->lanes, t->threads);
  int code = prepare(t);
  if (!code) code = compare(t, error);
  if (!code) code = time_in_turn(t, repeats, block_seconds, seconds);
  if (!code) code = compare(t, error);
  gf_pool_leave();
  if (code) gf_device_abandon();
  return code;
}

int gf_trial_run(int repeats, double block_seconds, char *json, size_t bytes) {
  if (!bytes) return -1;
  json[0] = '\0';
  if (repeats < 1 || !(block_seconds > 0))
    return gf_trial_write_failure(json, bytes, "a trial needs a turn, and time for it");
  gf_set_error("%s", "");
  trial t = {.operands = gf_trial_operand_count};
  double error, *seconds[KERNELS];
  double *block = gf_allocate(KERNELS * (size_t)repeats * sizeof *block, "seconds");
  if (!block) return gf_trial_write_failure(json, bytes, gf_error_text());
  for (int which = 0; which < KERNELS; ++which) seconds[which] = block + which * repeats;
  int code = measure(&t, repeats, block_seconds, &error, seconds);
  if (code)
    code = gf_trial_write_failure(json, bytes, t.failure);
  else
    code = gf_trial_write_result(json, bytes, error, seconds[CANDIDATE], seconds[REFERENCE], repeats);
  release(&t);
  free(block);
  return code;
}
