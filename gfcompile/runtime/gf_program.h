/* What the generated driver provides to the runtime. Internal to the library: never exported. */
#ifndef GF_PROGRAM_H
#define GF_PROGRAM_H

#include <stddef.h>

#include "gf_step.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

extern const char gf_program_build_id[];
extern const gf_about gf_program_about;
/* What a checkpoint must have in common with the step: the trained parameters, the frozen weights. Hex digits. */
extern const char gf_program_compatible[], gf_program_frozen[];

/* State, inputs and outputs of the step, as in the manifest. */
typedef struct {
  const gf_value *values;
  int count;
} gf_values;
extern const gf_values gf_state_values, gf_input_values, gf_output_values, gf_gradient_values, gf_feature_values;

/* What is drawn for an input of role "channels": in each of `sets`, `chosen` of `candidates`, a candidate being `width`
 * channels. `always`: these instead. */
typedef struct {
  int sets, candidates, chosen, width;
  const int32_t *always;
} gf_draw;
typedef enum { GF_DRAWN_EACH_STEP, GF_DRAWN_EACH_EPOCH, GF_DRAWN_ONCE } gf_drawn_when;
/* One for each such input, in order. */
typedef struct {
  const gf_draw *draws;
  int count;
  gf_drawn_when when;
} gf_program_draws_t;
extern const gf_program_draws_t gf_program_draws;

extern const size_t gf_program_arena_bytes;
/* Per thread: the largest sum of the workspaces that a kernel's tasks hold, each rounded up to 64 bytes. */
extern const size_t gf_program_scratch_bytes;

/* Provided by the runtime: where in the arena the next kernel's workspaces outside its tasks lie. */
void gf_program_share(char *workspace, size_t bytes);

/* Called once for a new arena: puts there what the programs read and nobody writes. 0, or -1 with a text. */
int gf_program_prepare(char *arena);

/* The arena, the state, lr, loss and all arrays are where gf_device.h allocates, and 64-byte aligned. Each returns 0 or
 * the failing kernel's code. */
int gf_program_train(char *arena, void *const *state, const void *const *inputs, const float *lr, float *loss);
int gf_program_gradients(char *arena, void *const *state, const void *const *inputs, float *loss,
                         void *const *gradients);
int gf_program_predict(char *arena, void *const *state, const void *const *inputs, void *const *outputs);
/* Only where GF_FEATURES is defined: the step cut after its frozen prefix. */
int gf_program_features(char *arena, void *const *state, const void *const *inputs, void *const *features);
int gf_program_train_features(char *arena, void *const *state, const void *const *inputs, const float *lr,
                              float *loss);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
