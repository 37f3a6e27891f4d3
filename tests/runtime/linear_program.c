/* A program written by hand in place of the generated driver: out = scale * (x @ w) + b, weighted squared error,
 * SGD with momentum 0.9. w is stored as its transpose, so that the manifest's layout is exercised.
 *
 * -DLABELS   the target is int64 class indices, taken as one-hot rows
 * -DGREEDY   the scratch is planned too small
 * -DGF_FEATURES   with a frozen part whose features are x and, as int64, a number that tells whose x it is
 * -DSWOLLEN  a step leaves infinity in the momentum, though neither loss nor weights show it
 * -DSTEEP    a gradient is infinite, though the update is not
 * x[0][0] of 777 makes a parallel task fail with code 3, 778 makes it overrun its workspace. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "gf_program.h"

enum { N = 4, I = 2, O = 3 };
typedef struct {
  void *sync_handle;
  int32_t num_task;
} env_t;
typedef int (*task_t)(int, env_t *, void *);

/* Weak slots, as TVM's objects have them. */
__attribute__((weak)) void *__TVMBackendAllocWorkspace;
__attribute__((weak)) void *__TVMBackendFreeWorkspace;
__attribute__((weak)) void *__TVMBackendParallelLaunch;

static int launch(task_t task, void *closure, int tasks) {
  return ((int (*)(task_t, void *, int))__TVMBackendParallelLaunch)(task, closure, tasks);
}
static void *workspace(uint64_t bytes) {
  return ((void *(*)(int, int, uint64_t, int, int))__TVMBackendAllocWorkspace)(1, 0, bytes, 2, 32);
}
static int release(void *memory) { return ((int (*)(int, int, void *))__TVMBackendFreeWorkspace)(1, 0, memory); }

enum { W, B, W_MOMENTUM, B_MOMENTUM, COUNT, SCALE };
const char gf_program_build_id[] = BUILD_ID;
const char gf_program_compatible[] = "c0", gf_program_frozen[] = "f0";
#ifdef LABELS
const gf_about gf_program_about = {"linear_step", "test", "0", "cross_entropy", 0.05f, N, 1, O, 0, 0};
#else
const gf_about gf_program_about = {"linear_step", "test", "0", "mse", 0.05f, N, 1, 0, 0, 0};
#endif
#define SHAPE(...) (const int64_t[]){__VA_ARGS__}
#define TRANSPOSED 2, SHAPE(I, O), 2, SHAPE(I, O), (const int[]){1, 0}, I * O * 4
#define ROW 1, SHAPE(O), 0, 0, 0, O * 4
#define TABLE(name, ...) \
  static const gf_value name##_table[] = {__VA_ARGS__}; \
  const gf_values gf_##name##_values = {name##_table, sizeof name##_table / sizeof *name##_table};
TABLE(state,
      {"fc.weight", "parameter", GF_FLOAT32, TRANSPOSED},
      {"fc.bias", "parameter", GF_FLOAT32, ROW},
      {"momentum_buffer/fc.weight", "optimizer", GF_FLOAT32, TRANSPOSED},
      {"momentum_buffer/fc.bias", "optimizer", GF_FLOAT32, ROW},
      {"fc.count", "buffer", GF_INT64, 0, 0, 0, 0, 0, 8},
      {"scale", "constant", GF_FLOAT32, 1, SHAPE(1), 0, 0, 0, 4})
TABLE(input,
      {"x", "input", GF_FLOAT32, 2, SHAPE(N, I), 0, 0, 0, N * I * 4},
#ifdef LABELS
      {"target", "target", GF_INT64, 1, SHAPE(N), 0, 0, 0, N * 8},
#else
      {"target", "target", GF_FLOAT32, 2, SHAPE(N, O), 0, 0, 0, N * O * 4},
#endif
      {"sample_weight", "sample_weight", GF_FLOAT32, 1, SHAPE(N), 0, 0, 0, N * 4})
TABLE(output, {"output", "output", GF_FLOAT32, 2, SHAPE(N, O), 0, 0, 0, N * O * 4})
TABLE(gradient, {"fc.weight", "gradient", GF_FLOAT32, TRANSPOSED}, {"fc.bias", "gradient", GF_FLOAT32, ROW})
#ifdef GF_FEATURES
TABLE(feature,
      {"feature0", "feature", GF_FLOAT32, 2, SHAPE(N, I), 0, 0, 0, N * I * 4},
      {"feature1", "feature", GF_INT64, 1, SHAPE(N), 0, 0, 0, N * 8})
#else
const gf_values gf_feature_values = {0, 0};
#endif
enum { SHARED = 64, TEMPORARIES = (N * O + I * O + O) * 4, SHARED_AT = (TEMPORARIES + 63) / 64 * 64 };
const size_t gf_program_arena_bytes = SHARED_AT + SHARED;
#ifdef GREEDY
const size_t gf_program_scratch_bytes = 0;
#else
const size_t gf_program_scratch_bytes = 64;
#endif

const gf_program_draws_t gf_program_draws = {0};
int gf_program_prepare(char *arena) { return (void)arena, 0; }

typedef struct {
  const float *x, *w, *b, *scale;
  float *out, *row;
} forward_t;

static int nested(int id, env_t *env, void *closure) {
  return env->num_task == 1 && id == 0 ? ++*(int *)closure, 0 : 9;
}

static int forward_task(int id, env_t *env, void *closure) {
  forward_t *f = closure;
  int chunk = (N + env->num_task - 1) / env->num_task, calls = 0;
  int code = launch(nested, &calls, 0);
  if (code || calls != 1) return 9;
  for (int n = id * chunk; n < N && n < (id + 1) * chunk; ++n) {
    if (f->x[n * I] == 777) return 3;
    float *row = workspace(f->x[n * I] == 778 ? 4096 : O * 4);
    if (!row) return -1;
    if ((uintptr_t)row % 64) return 8;
    for (int o = 0; o < O; ++o) {
      row[o] = 0;
      for (int i = 0; i < I; ++i) row[o] += f->x[n * I + i] * f->w[o * I + i];
    }
    for (int o = 0; o < O; ++o) f->out[n * O + o] = f->scale[0] * row[o] + f->b[o];
    if (release(row)) return 7;
  }
  return 0;
}

static int forward(char *arena, void *const *state, const float *x, float *out) {
  gf_program_share(arena + SHARED_AT, SHARED);
  float *outer = workspace(60); /* apart from the tasks' own on this thread */
  if (!outer) return -1;
  memset(outer, 0x7f, 60);
  forward_t f = {x, state[W], state[B], state[SCALE], out, outer};
  int code = launch(forward_task, &f, 0);
  for (int i = 0; i < 15 && !code; ++i)
    if (*(int *)&outer[i] != 0x7f7f7f7f) code = 6;
  return code ? code : release(outer);
}

static int backward(char *arena, void *const *state, const void *const *inputs, float *loss, float *dw, float *db) {
  float *out = (float *)arena;
  const float *x = inputs[0], *weight = inputs[2], *scale = state[SCALE];
  float total = 0;
  int code = forward(arena, state, x, out);
  if (code) return code;
  for (int n = 0; n < N; ++n) total += weight[n];
  *loss = 0;
  memset(dw, 0, I * O * 4);
  memset(db, 0, O * 4);
  for (int n = 0; n < N; ++n)
    for (int o = 0; o < O; ++o) {
#ifdef LABELS
      float target = ((const int64_t *)inputs[1])[n] == o;
#else
      float target = ((const float *)inputs[1])[n * O + o];
#endif
      float difference = out[n * O + o] - target, g = 2 * weight[n] / total * difference;
      *loss += weight[n] / total * difference * difference;
      db[o] += g;
      for (int i = 0; i < I; ++i) dw[o * I + i] += scale[0] * g * x[n * I + i];
    }
  return 0;
}

static void update(float *value, float *momentum, const float *gradient, int count, float lr) {
  for (int i = 0; i < count; ++i) {
    momentum[i] = 0.9f * momentum[i] + gradient[i];
    value[i] -= lr * momentum[i];
  }
}

int gf_program_train(char *arena, void *const *state, const void *const *inputs, const float *lr, float *loss) {
  float *dw = (float *)arena + N * O, *db = dw + I * O;
  int code = backward(arena, state, inputs, loss, dw, db);
  if (code) return code;
  update(state[W], state[W_MOMENTUM], dw, I * O, *lr);
  update(state[B], state[B_MOMENTUM], db, O, *lr);
  ++*(int64_t *)state[COUNT];
#ifdef SWOLLEN
  ((float *)state[W_MOMENTUM])[0] = INFINITY;
#endif
  return 0;
}

int gf_program_gradients(char *arena, void *const *state, const void *const *inputs, float *loss,
                         void *const *gradients) {
  int code = backward(arena, state, inputs, loss, gradients[0], gradients[1]);
#ifdef STEEP
  ((float *)gradients[1])[0] = INFINITY;
#endif
  return code;
}

int gf_program_predict(char *arena, void *const *state, const void *const *inputs, void *const *outputs) {
  return forward(arena, state, inputs[0], outputs[0]);
}

#ifdef GF_FEATURES
static int64_t tag(const float *x) { return (int64_t)(1000 * x[0]); }

int gf_program_features(char *arena, void *const *state, const void *const *inputs, void *const *features) {
  const float *x = inputs[0];
  (void)arena, (void)state;
  memcpy(features[0], x, N * I * 4);
  for (int n = 0; n < N; ++n) ((int64_t *)features[1])[n] = tag(x + n * I);
  return 0;
}

int gf_program_train_features(char *arena, void *const *state, const void *const *inputs, const float *lr,
                              float *loss) {
  const void *rest[] = {inputs[0], inputs[2], inputs[3]};
  for (int n = 0; n < N; ++n)
    if (((const int64_t *)inputs[1])[n] != tag((const float *)inputs[0] + n * I)) return 5; /* rows of two samples */
  return gf_program_train(arena, state, rest, lr, loss);
}
#endif
