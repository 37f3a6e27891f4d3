#include "gf_trial.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gf_cores.h"
#include "gf_memory.h"
#include "gf_pool.h"
#include "gf_trial_cache.h"
#include "gf_trial_values.h"

/* Painted around every operand, so that a kernel that writes a little outside is told from one that computes badly.
 * Outputs are painted too: 0xff bytes are a NaN, and no bool. */
enum { GUARD = 256, PAINT = 0xff };

enum { CANDIDATE, REFERENCE, KERNELS };

enum { LINE = 64, MOST_RUNS = 4 }; /* bytes of a cache's line; runs of one kernel in a turn, each with cold caches */

typedef struct {
  int operands;
  char **blocks[KERNELS]; /* the allocations; an input's is in both lists */
  void **places[KERNELS]; /* a guard behind their beginnings: what the kernels get */
  char *shared[KERNELS];  /* workspaces outside tasks */
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

static int prepare_operands(trial *t) {
  for (int which = 0; which < KERNELS; ++which) {
    t->blocks[which] = gf_allocate((size_t)t->operands * sizeof(char *), "operands");
    t->places[which] = t->blocks[which] ? gf_allocate((size_t)t->operands * sizeof(void *), "operands") : NULL;
    if (!t->places[which]) return fail(t, "%s", gf_error_text());
  }
  for (int index = 0; index < t->operands; ++index)
    for (int which = 0; which < KERNELS; ++which) {
      int is_shared = which != CANDIDATE && !gf_trial_operands[index].is_output;
      char *block = is_shared ? t->blocks[CANDIDATE][index] : gf_allocate(block_bytes(index), "operand");
      if (!block) return fail(t, "%s", gf_error_text());
      t->blocks[which][index] = block;
      t->places[which][index] = block + GUARD;
      if (is_shared) continue;
      memset(block, PAINT, block_bytes(index));
      if (!gf_trial_operands[index].is_output) gf_trial_fill(&gf_trial_operands[index], index + 1, block + GUARD);
    }
  return 0;
}

/* As gf_runtime.c does for a step. */
static int prepare_threads(trial *t) {
  size_t each = gf_trial_candidate.each > gf_trial_reference.each ? gf_trial_candidate.each : gf_trial_reference.each;
  size_t bytes = gf_align_up(each);
  t->threads = gf_default_threads();
  t->lanes = gf_allocate((size_t)t->threads * sizeof *t->lanes, "threads");
  t->scratch = t->lanes ? gf_allocate((size_t)t->threads * bytes, "scratch") : NULL;
  if (!t->scratch || gf_pool_reserve(t->threads)) return fail(t, "%s", gf_error_text());
  for (int i = 0; i < t->threads; ++i) {
    char *base = t->scratch + (size_t)i * bytes;
    t->lanes[i].stack = (gf_stack){base, base, base + bytes};
  }
  for (int which = 0; which < KERNELS; ++which) {
    t->shared[which] = gf_allocate(kernel(which)->shared, "workspace");
    if (!t->shared[which]) return fail(t, "%s", gf_error_text());
  }
  t->other_bytes = gf_trial_cache_bytes();
  t->other = gf_allocate(t->other_bytes, "what fills the caches");
  return t->other ? 0 : fail(t, "%s", gf_error_text());
}

static void release(trial *t) {
  gf_pool_stop();
  for (int index = 0; index < t->operands; ++index)
    for (int which = 0; which < KERNELS; ++which)
      if (t->blocks[which] && (which == CANDIDATE || gf_trial_operands[index].is_output)) free(t->blocks[which][index]);
  for (int which = 0; which < KERNELS; ++which) {
    free(t->blocks[which]);
    free(t->places[which]);
    free(t->shared[which]);
  }
  free(t->scratch);
  free(t->lanes);
  free(t->other);
}

static int run(trial *t, int which) {
  gf_pool_share(t->shared[which], kernel(which)->shared);
  int code = kernel(which)->run(t->places[which]);
  if (!code) return 0;
  const char *text = gf_error_text()[0] ? gf_error_text() : "it gave no text";
  return fail(t, "the %s failed with code %d: %s", kernel(which)->name, code, text);
}

static int is_painted(const char *from, const char *to) {
  for (; from < to; ++from)
    if ((unsigned char)*from != PAINT) return 0;
  return 1;
}

static int check_guards(trial *t, int which) {
  for (int index = 0; index < t->operands; ++index) {
    const char *block = t->blocks[which][index], *place = t->places[which][index];
    if (!is_painted(block, place) || !is_painted(place + operand_bytes(index), block + block_bytes(index)))
      return fail(t, "the %s wrote outside operand %d", kernel(which)->name, index);
  }
  return 0;
}

/* Runs both on freshly painted outputs, and raises *error to the worst output's. */
static int compare(trial *t, double *error) {
  for (int index = 0; index < t->operands; ++index)
    for (int which = 0; which < KERNELS; ++which)
      if (gf_trial_operands[index].is_output) memset(t->places[which][index], PAINT, operand_bytes(index));
  if (run(t, REFERENCE) || check_guards(t, REFERENCE) || run(t, CANDIDATE) || check_guards(t, CANDIDATE)) return -1;
  for (int index = 0; index < t->operands; ++index) {
    if (!gf_trial_operands[index].is_output) continue;
    double found = gf_trial_error(&gf_trial_operands[index], t->places[CANDIDATE][index], t->places[REFERENCE][index]);
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

typedef struct {
  const char *from;
  size_t bytes;
  int tasks;
} reading;

static int read_part(int task, gf_parallel_env *env, void *closure) {
  (void)env;
  const reading *all = closure;
  size_t part = all->bytes / (size_t)all->tasks, start = part * (size_t)task;
  char sum = 0;
  for (size_t at = start; at < start + part; at += LINE) sum += *(volatile const char *)(all->from + at);
  return (void)sum, 0;
}

/* As in a step: weights and outputs are long out of the caches, only the first operand, which the kernel before has
 * written, is near. All threads read, and so are awake when the kernel begins, as in a step too. */
static int make_cold(trial *t, int which) {
  reading others = {t->other, t->other_bytes, t->threads};
  reading input = {t->places[which][0], operand_bytes(0), t->threads};
  return gf_pool_launch(read_part, &others, t->threads) || gf_pool_launch(read_part, &input, t->threads);
}

static int run_block(trial *t, int which, long runs, double *seconds) {
  *seconds = 0;
  for (long i = 0; i < runs; ++i) {
    if (make_cold(t, which)) return fail(t, "%s", gf_error_text());
    double start = now();
    if (run(t, which)) return -1;
    *seconds += now() - start;
  }
  return 0;
}

/* How many runs a block holds; finding out is the warm-up. */
static int count_runs(trial *t, int which, double block_seconds, long *runs) {
  double seconds = 0;
  for (*runs = 1;; *runs *= 2) {
    if (run_block(t, which, *runs, &seconds)) return -1;
    if (seconds >= block_seconds / 2 || *runs >= MOST_RUNS) break;
  }
  double wanted = ceil((double)*runs * block_seconds / seconds);
  *runs = wanted < 1 ? 1 : wanted > MOST_RUNS ? MOST_RUNS : (long)wanted;
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
  if (prepare_operands(t) || prepare_threads(t)) return -1;
  gf_pool_enter(t->lanes, t->threads);
  int code = compare(t, error);
  if (!code) code = time_in_turn(t, repeats, block_seconds, seconds);
  if (!code) code = compare(t, error);
  gf_pool_leave();
  return code;
}

static int append(char *json, size_t bytes, const char *format, ...) GF_PRINTF(3, 4);
static int append(char *json, size_t bytes, const char *format, ...) {
  size_t used = strlen(json);
  va_list arguments;
  va_start(arguments, format);
  int more = vsnprintf(json + used, bytes - used, format, arguments);
  va_end(arguments);
  return more >= 0 && (size_t)more < bytes - used ? 0 : -1;
}

static int write_failure(char *json, size_t bytes, const char *text) {
  char plain[sizeof((trial *)0)->failure];
  size_t i = 0;
  for (; text[i] && i + 1 < sizeof plain; ++i) {
    plain[i] = text[i] == '"' || text[i] == '\\' ? '\'' : text[i];
    if ((unsigned char)plain[i] < ' ') plain[i] = ' ';
  }
  plain[i] = '\0';
  return append(json, bytes, "{\"failure\": \"%s\"}", plain);
}

static int write_seconds(char *json, size_t bytes, const char *name, const double *seconds, int count) {
  if (append(json, bytes, ", \"%s\": [", name)) return -1;
  for (int i = 0; i < count; ++i)
    if (append(json, bytes, "%s%.9g", i ? ", " : "", seconds[i])) return -1;
  return append(json, bytes, "]");
}

static int write_result(char *json, size_t bytes, double error, double *seconds[KERNELS], int repeats) {
  char number[32] = "Infinity"; /* printf would say inf, which is no word of JSON's readers */
  if (!isinf(error)) snprintf(number, sizeof number, "%.9g", error);
  int code = append(json, bytes, "{\"error\": %s", number);
  for (int which = 0; which < KERNELS && !code; ++which)
    code = write_seconds(json, bytes, kernel(which)->name, seconds[which], repeats);
  return code ? code : append(json, bytes, "}");
}

int gf_trial_run(int repeats, double block_seconds, char *json, size_t bytes) {
  if (!bytes) return -1;
  json[0] = '\0';
  if (repeats < 1 || !(block_seconds > 0)) return write_failure(json, bytes, "a trial needs a turn, and time for it");
  gf_set_error("%s", "");
  trial t = {.operands = gf_trial_operand_count};
  double error, *seconds[KERNELS];
  double *block = gf_allocate(KERNELS * (size_t)repeats * sizeof *block, "seconds");
  if (!block) return write_failure(json, bytes, gf_error_text());
  for (int which = 0; which < KERNELS; ++which) seconds[which] = block + which * repeats;
  int code = measure(&t, repeats, block_seconds, &error, seconds);
  code = code ? write_failure(json, bytes, t.failure) : write_result(json, bytes, error, seconds, repeats);
  release(&t);
  free(block);
  return code;
}
