/* gf_step.h over gf_program.h. */
#define _DEFAULT_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "gf_cores.h"
#include "gf_device.h"
#include "gf_staging.h"
#include "gf_draws.h"
#include "gf_memory.h"
#include "gf_pool.h"
#include "gf_program.h"
#include "gf_state.h"
#include "gf_step.h"

struct gf_step {
  gf_staging staging;
  gf_draws draws;
  gf_keeping keeping;
  char *arena, *block; /* on the device */
  char *scratch;
  void **state; /* into block, in the manifest's order */
  gf_lane *lanes;
  int threads;
};

/* One lock for the whole library: the pool serves one run at a time anyway, and a fork has one lock to think of. */
static pthread_mutex_t library = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_handlers = PTHREAD_ONCE_INIT;
static int live_steps;

/* A fork waits for the running step, so that the child's copy of the state is a whole one. */
static void before_fork(void) { pthread_mutex_lock(&library); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&library); }
static void after_fork_in_child(void) {
  pthread_mutex_init(&library, NULL);
  gf_pool_forget();
}
static void install_fork_handlers(void) { pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); }

/* What comes from below with a text alone is a kernel's failure or, where kernels run on one, the device's. */
static int failure_code(void) {
  if (gf_failure()) return gf_failure();
  return gf_device_is_host ? GF_ERROR_KERNEL : GF_ERROR_DEVICE;
}

static size_t state_bytes(void) {
  size_t bytes = 0;
  for (int i = 0; i < gf_state_values.count; ++i) bytes += gf_align_up(gf_state_values.values[i].bytes);
  return bytes;
}

/* Under the library's lock. */
static void release(gf_step *step) {
  gf_replacement_close(&step->keeping.held);
  gf_staging_close(&step->staging);
  gf_draws_close(&step->draws);
  gf_device_free(step->arena);
  gf_device_free(step->block);
  free(step->scratch);
  free(step->state);
  free(step->lanes);
  free(step);
  if (--live_steps == 0) { /* so that the library can be unloaded */
    gf_pool_stop();
    gf_device_close();
  }
}

static int set_threads(gf_step *step, int threads) {
  if (threads <= 0) threads = gf_default_threads();
  if (threads > GF_MAX_THREADS) {
    return gf_fail(GF_ERROR_ARGUMENT, "%d threads asked for; the most is %d", threads, GF_MAX_THREADS);
  }
  if (!gf_device_is_host) threads = 1; /* the device has threads of its own */
  size_t bytes = gf_step_scratch_bytes();
  gf_lane *lanes = gf_allocate((size_t)threads * sizeof *lanes, "threads");
  char *scratch = lanes ? gf_allocate((size_t)threads * bytes, "scratch") : NULL;
  if (!scratch || gf_pool_reserve(threads)) {
    free(scratch);
    free(lanes);
    return GF_ERROR_MEMORY;
  }
  for (int i = 0; i < threads; ++i) {
    char *base = scratch + (size_t)i * bytes;
    lanes[i].stack = (gf_stack){base, base, base + bytes};
  }
  free(step->scratch);
  free(step->lanes);
  step->scratch = scratch;
  step->lanes = lanes;
  step->threads = threads;
  return 0;
}

static int fill(gf_step *step, int threads) {
  if (gf_device_open() || gf_device_enter()) return -1;
  step->arena = gf_device_allocate(gf_program_arena_bytes, "arena");
  step->block = step->arena ? gf_device_allocate(state_bytes(), "state") : NULL;
  step->state = step->block ? gf_allocate((size_t)gf_state_values.count * sizeof *step->state, "state table") : NULL;
  if (!step->state) return -1;
  char *next = step->block;
  for (int i = 0; i < gf_state_values.count; ++i) {
    step->state[i] = next;
    next += gf_align_up(gf_state_values.values[i].bytes);
  }
  if (gf_staging_open(&step->staging) || gf_draws_open(&step->draws)) return -1;
  if (gf_program_prepare(step->arena) || gf_device_finish()) return -1;
  return set_threads(step, threads);
}

gf_step *gf_step_create(int threads) {
  gf_set_error("%s", "");
  pthread_once(&fork_handlers, install_fork_handlers);
  gf_step *step = gf_allocate(sizeof *step, "step");
  if (!step) return NULL;
  pthread_mutex_lock(&library);
  ++live_steps;
  if (fill(step, threads)) {
    release(step);
    step = NULL;
  }
  pthread_mutex_unlock(&library);
  return step;
}

void gf_step_destroy(gf_step *step) {
  if (!step) return;
  pthread_mutex_lock(&library);
  release(step);
  pthread_mutex_unlock(&library);
}

int gf_step_threads(const gf_step *step) {
  pthread_mutex_lock(&library);
  int threads = step ? step->threads : 0;
  pthread_mutex_unlock(&library);
  return threads;
}

int gf_step_set_threads(gf_step *step, int threads) {
  gf_set_error("%s", "");
  if (!step) {
    return gf_fail(GF_ERROR_ARGUMENT, "gf_step_set_threads: the step is NULL");
  }
  pthread_mutex_lock(&library);
  int code = set_threads(step, threads);
  pthread_mutex_unlock(&library);
  return code;
}

const char *gf_build_id(void) { return gf_program_build_id; }
const char *gf_error(void) { return gf_error_text(); }

int gf_error_code(void) { return gf_error_text()[0] ? failure_code() : GF_OK; }

int gf_step_tensor_count(void) { return gf_state_values.count; }
size_t gf_step_arena_bytes(void) { return gf_program_arena_bytes; }

size_t gf_step_state_bytes(void) { return state_bytes(); }
size_t gf_step_scratch_bytes(void) { return gf_align_up(gf_program_scratch_bytes); }

size_t gf_step_tensor_bytes(int index) {
  return index < 0 || index >= gf_state_values.count ? 0 : gf_state_values.values[index].bytes;
}

void *gf_step_tensor(gf_step *step, int index) {
  gf_set_error("%s", "");
  if (!gf_device_is_host) {
    gf_fail(GF_ERROR_DEVICE, "gf_step_tensor: the state is in the device's memory; use gf_step_get and gf_step_set");
    return NULL;
  }
  return !step || index < 0 || index >= gf_state_values.count ? NULL : step->state[index];
}

/* Under the library's lock, or a step could be half way through the tensor. */
static int move_state(gf_step *step, int index, void *out, const void *in, const char *call) {
  gf_set_error("%s", "");
  if (!step || index < 0 || index >= gf_state_values.count || !(out || in)) {
    return gf_fail(GF_ERROR_ARGUMENT, "%s: the step or the memory is NULL, or there is no state tensor %d", call,
                   index);
  }
  size_t bytes = gf_state_values.values[index].bytes;
  pthread_mutex_lock(&library);
  int code = gf_device_enter();
  if (!code) code = out ? gf_device_download(out, step->state[index], bytes) : 0;
  if (!code) code = in ? gf_device_upload(step->state[index], in, bytes) : 0;
  if (!code) code = gf_device_finish();
  if (in) step->keeping.loss_is_bad = 0; /* the state is no longer what that loss led to */
  pthread_mutex_unlock(&library);
  return code ? failure_code() : GF_OK;
}

gf_keeping *gf_step_keeping(gf_step *step) { return &step->keeping; }

int gf_step_get(gf_step *step, int index, void *physical) {
  return move_state(step, index, physical, NULL, "gf_step_get");
}

int gf_step_set(gf_step *step, int index, const void *physical) {
  return move_state(step, index, NULL, physical, "gf_step_set");
}

static int begin(gf_step *step, const void *const *inputs, const char *call) {
  gf_set_error("%s", "");
  if (!step || !inputs) {
    return gf_fail(GF_ERROR_ARGUMENT, "%s: the step or its inputs are NULL", call);
  }
  pthread_mutex_lock(&library);
  if (gf_device_enter()) {
    pthread_mutex_unlock(&library);
    return failure_code();
  }
  if (gf_pool_reserve(step->threads)) gf_set_error("%s", ""); /* only after a fork; fewer executors still do */
  gf_pool_enter(step->lanes, step->threads);
  return 0;
}

/* Waits for the device, which may have failed at any kernel. `is_update`: the state was changed. */
static int end(gf_step *step, int code, float *loss, int is_update, const char *call) {
  if (code) gf_device_abandon();
  else code = gf_device_finish();
  if (is_update && !code) step->keeping.loss_is_bad = !isfinite(step->staging.host_loss[0]);
  if (loss) *loss = step->staging.host_loss[0];
  gf_pool_leave();
  pthread_mutex_unlock(&library);
  if (!code) return GF_OK;
  if (!gf_error_text()[0]) gf_set_error("%s: a kernel failed with code %d", call, code);
  return failure_code();
}

/* The inputs as a program gets them, with the channels that it draws; NULL with a text. */
static const void *const *take(gf_step *step, gf_takes what, const void *const *inputs) {
  const void *const *filled = gf_draws_fill(&step->draws, what, inputs);
  return filled ? gf_staging_take(&step->staging, what, filled) : NULL;
}

/* gf_program_train, or the same on features. */
typedef int (*update_t)(char *, void *const *, const void *const *, const float *, float *);

static int update(gf_step *step, update_t program, gf_takes what, const void *const *inputs, float lr, float *loss,
                  const char *call) {
  if (!(lr >= 0) || isinf(lr)) {
    return gf_fail(GF_ERROR_ARGUMENT, "%s: the learning rate '%g' must be finite and not negative", call, (double)lr);
  }
  int code = begin(step, inputs, call);
  if (code) return code;
  gf_staging *staging = &step->staging;
  const void *const *taken = take(step, what, inputs);
  code = !taken || gf_staging_set_lr(staging, lr) ? -1 : 0;
  if (!code) code = program(step->arena, step->state, taken, staging->lr, staging->loss);
  if (!code) code = gf_staging_get_loss(staging);
  if (!code) ++step->draws.now.steps;
  return end(step, code, loss, 1, call);
}

int gf_step_train(gf_step *step, const void *const *inputs, float lr, float *loss) {
  return update(step, gf_program_train, GF_TAKES_INPUTS, inputs, lr, loss, "gf_step_train");
}

int gf_step_gradients(gf_step *step, const void *const *inputs, float *loss, void *const *gradients) {
  int code = begin(step, inputs, "gf_step_gradients");
  if (code) return code;
  gf_staging *staging = &step->staging;
  const void *const *taken = take(step, GF_TAKES_INPUTS, inputs);
  void *const *given = gf_staging_give(staging, &gf_gradient_values, gradients);
  code = taken ? gf_program_gradients(step->arena, step->state, taken, staging->loss, given) : -1;
  if (!code) code = gf_staging_deliver(staging, &gf_gradient_values, gradients);
  if (!code) code = gf_staging_get_loss(staging);
  return end(step, code, loss, 0, "gf_step_gradients");
}

/* gf_program_predict, or gf_program_features. */
typedef int (*infer_t)(char *, void *const *, const void *const *, void *const *);

static int infer(gf_step *step, infer_t program, const void *const *inputs, const gf_values *values, void *const *out,
                 const char *call) {
  int code = begin(step, inputs, call);
  if (code) return code;
  const void *const *taken = gf_staging_take(&step->staging, GF_TAKES_SAMPLES, inputs);
  void *const *given = gf_staging_give(&step->staging, values, out);
  code = taken ? program(step->arena, step->state, taken, given) : -1;
  if (!code) code = gf_staging_deliver(&step->staging, values, out);
  return end(step, code, NULL, 0, call);
}

int gf_step_predict(gf_step *step, const void *const *inputs, void *const *outputs) {
  return infer(step, gf_program_predict, inputs, &gf_output_values, outputs, "gf_step_predict");
}

#ifdef GF_FEATURES
int gf_step_features(gf_step *step, const void *const *inputs, void *const *features) {
  return infer(step, gf_program_features, inputs, &gf_feature_values, features, "gf_step_features");
}

int gf_step_train_features(gf_step *step, const void *const *inputs, float lr, float *loss) {
  return update(step, gf_program_train_features, GF_TAKES_FEATURES, inputs, lr, loss, "gf_step_train_features");
}
#endif

int gf_step_get_draws(gf_step *step, gf_draw_state *state) {
  gf_set_error("%s", "");
  if (!step || !state) return gf_fail(GF_ERROR_ARGUMENT, "gf_step_get_draws: the step or the state is NULL");
  pthread_mutex_lock(&library);
  *state = step->draws.now;
  pthread_mutex_unlock(&library);
  return GF_OK;
}

int gf_step_set_draws(gf_step *step, const gf_draw_state *state) {
  gf_set_error("%s", "");
  if (!step || !state || state->steps < 0 || state->epoch < 0)
    return gf_fail(GF_ERROR_ARGUMENT, "gf_step_set_draws: the step or the state is NULL, or a count is negative");
  pthread_mutex_lock(&library);
  step->draws.now = *state;
  pthread_mutex_unlock(&library);
  return GF_OK;
}

int gf_step_draw(gf_step *step, int input, int32_t *channels) {
  const gf_value *value = gf_step_value(GF_KIND_INPUT, input);
  gf_draw_state now;
  gf_set_error("%s", "");
  if (!step || !channels || !value || strcmp(value->role, "channels") != 0)
    return gf_fail(GF_ERROR_ARGUMENT, "gf_step_draw: the step or the memory is NULL, or input %d is no draw", input);
  int number = 0, code = gf_step_get_draws(step, &now);
  for (int i = 0; i < input; ++i) number += strcmp(gf_input_values.values[i].role, "channels") == 0;
  if (!code) gf_draws_make(&now, number, channels);
  return code;
}

void gf_program_share(char *workspace, size_t bytes) { gf_pool_share(workspace, bytes); }
