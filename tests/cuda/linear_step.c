/* A CUDA step written by hand, as the compiler generates them: the kernels of linear_step.cu, and a frozen part that
 * copies its input. images.inc gives gf_cuda_images.
 *
 * -DSWAPPED, -DLARGE_GRID, -DLARGE_BLOCK: one launch is wrong. -DUNKNOWN_KERNEL: one kernel is not in the images. */
#include "gf_cuda.h"
#include "gf_device.h"
#include "gf_program.h"

#include "images.inc"

enum { N = 8, I = 16, O = 4, OUT = 0, DW = 128, DB = 384, FACTOR = 448 };

#ifdef UNKNOWN_KERNEL
const char *const gf_cuda_kernels[] = {"forward", "loss", "backward", "refresh"};
#else
const char *const gf_cuda_kernels[] = {"forward", "loss", "backward", "update"};
#endif
const int gf_cuda_kernel_count = 4;

const char gf_program_build_id[] = "linear", gf_program_compatible[] = "c0", gf_program_frozen[] = "f0";
const gf_about gf_program_about = {.name = "linear_step", .target = "jetson-nano", .loss = "mse", .batch = N};
const size_t gf_program_arena_bytes = 512, gf_program_scratch_bytes = 0;

#define SHAPE(...) (const int64_t[]){__VA_ARGS__}
#define TABLE(name, ...)                                \
  static const gf_value name##_table[] = {__VA_ARGS__}; \
  const gf_values gf_##name##_values = {name##_table, sizeof name##_table / sizeof *name##_table};
#define MATRIX(name, role, rows, columns) \
  { name, role, GF_FLOAT32, 2, SHAPE(rows, columns), 0, 0, 0, rows * columns * 4 }
#define ROW(name, role) \
  { name, role, GF_FLOAT32, 1, SHAPE(O), 0, 0, 0, O * 4 }
TABLE(state, MATRIX("fc.weight", "parameter", I, O), ROW("fc.bias", "parameter"))
TABLE(input, MATRIX("x", "input", N, I), MATRIX("target", "target", N, O))
TABLE(output, MATRIX("output", "output", N, O))
TABLE(gradient, MATRIX("fc.weight", "gradient", I, O), ROW("fc.bias", "gradient"))
TABLE(feature, MATRIX("feature0", "feature", N, I))

static const float factor[16] = {2.0f / (N * O)};
const gf_program_draws_t gf_program_draws = {0};
int gf_program_prepare(char *arena) { return gf_device_upload(arena + FACTOR, factor, sizeof factor); }

static int forward(void *x, void *w, void *b, void *out) {
#ifdef SWAPPED
  return gf_cuda_launch(0, N, 1, 1, O, 1, 1, (void *[]){&w, &x, &b, &out});
#elif defined LARGE_GRID
  return gf_cuda_launch(0, N + 300, 1, 1, O, 1, 1, (void *[]){&x, &w, &b, &out});
#elif defined LARGE_BLOCK
  return gf_cuda_launch(0, N, 1, 1, O + 1, 1, 1, (void *[]){&x, &w, &b, &out});
#else
  return gf_cuda_launch(0, N, 1, 1, O, 1, 1, (void *[]){&x, &w, &b, &out});
#endif
}

static int backward(char *arena, void *const *state, const void *const *inputs, float *loss, void *dw, void *db) {
  void *x = (void *)inputs[0], *target = (void *)inputs[1], *out = arena + OUT, *scale = arena + FACTOR;
  if (forward(x, state[0], state[1], out)) return -1;
  if (gf_cuda_launch(1, 1, 1, 1, N * O, 1, 1, (void *[]){&out, &target, &loss})) return -1;
  return gf_cuda_launch(2, I + 1, 1, 1, O, 1, 1, (void *[]){&x, &out, &target, &scale, &dw, &db});
}

static int update(void *value, void *gradient, const float *lr, unsigned rows) {
  return gf_cuda_launch(3, rows, 1, 1, O, 1, 1, (void *[]){&value, &gradient, &lr});
}

int gf_program_train(char *arena, void *const *state, const void *const *inputs, const float *lr, float *loss) {
  if (backward(arena, state, inputs, loss, arena + DW, arena + DB)) return -1;
  return update(state[0], arena + DW, lr, I) || update(state[1], arena + DB, lr, 1) ? -1 : 0;
}

int gf_program_gradients(char *arena, void *const *state, const void *const *inputs, float *loss,
                         void *const *gradients) {
  return backward(arena, state, inputs, loss, gradients[0], gradients[1]);
}

int gf_program_predict(char *arena, void *const *state, const void *const *inputs, void *const *outputs) {
  (void)arena;
  return forward((void *)inputs[0], state[0], state[1], outputs[0]);
}

int gf_program_features(char *arena, void *const *state, const void *const *inputs, void *const *features) {
  (void)arena, (void)state;
  return gf_device_copy(features[0], inputs[0], N * I * 4);
}

int gf_program_train_features(char *arena, void *const *state, const void *const *inputs, const float *lr,
                              float *loss) {
  return gf_program_train(arena, state, inputs, lr, loss);
}
