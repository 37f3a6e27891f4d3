/* The compiled training step: the public C interface of libstep.so, for C and C++.
 *
 * A program opens the artifact's folder, trains, and keeps checkpoints:
 *
 *     gf_step *step = gf_step_open("model_step", 0);
 *     gf_progress progress = {.lr = 0.05};
 *     gf_step_load(step, "run.ckpt", &progress);
 *     gf_step_train(step, inputs, (float)progress.lr, &loss), ++progress.steps;
 *     gf_step_save(step, "run.ckpt", &progress);
 *
 * Every function that returns an int, unless it says otherwise, returns GF_OK or another gf_code, with its text in
 * gf_error(). Memory is allocated by the calls that create, load and save, never inside a step. (The C library itself
 * sets up a thread's locals, some 600 bytes, when that thread first calls in here; gf_error() will do for that.)
 * Calls are safe from any thread; the steps of one library run one at a time, each on its own number of threads. A
 * child made by fork() keeps its steps and gets its worker threads back at its next call.
 * Inputs, outputs and gradients must be 64-byte aligned, since the kernels load them as whole vectors, and must not
 * overlap: outputs and gradients are written while inputs are still read.
 *
 * A step for a GPU keeps its state and arena there; every call copies its inputs in and its results out, and returns
 * when they are there. It has no worker threads, and in a child made by fork() its calls fail: CUDA's do. */
#ifndef GF_STEP_H
#define GF_STEP_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define GF_API __attribute__((visibility("default")))
#else
#define GF_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gf_step gf_step;

typedef enum {
  GF_OK = 0,
  GF_ERROR_ARGUMENT, /* a NULL, an index or a number out of range: the caller's mistake */
  GF_ERROR_FILE,     /* a file cannot be opened, read or written */
  GF_ERROR_FORMAT,   /* a file is not what it should be: truncated, damaged, or of another kind */
  GF_ERROR_CHECKSUM, /* a file's content is not what its checksum says */
  GF_ERROR_MISMATCH, /* a whole file, but of another model, plan or build */
  GF_ERROR_MEMORY,   /* memory or threads cannot be had */
  GF_ERROR_KERNEL,   /* a kernel failed; the state may be partly updated */
  GF_ERROR_DEVICE,   /* the device, or its driver, is missing or does not fit */
  GF_ERROR_DIVERGED  /* the loss or the state is not finite: nothing that is worth keeping */
} gf_code;

typedef enum {
  GF_FLOAT32,
  GF_FLOAT16,
  GF_FLOAT64,
  GF_INT64,
  GF_INT32,
  GF_INT16,
  GF_INT8,
  GF_UINT8,
  GF_BOOL
} gf_dtype;

/* A tensor of the step: of its state, or one that its functions take or give. Names are the model's own; `shape` is
 * the model's layout too, row-major. The library keeps some weights, with their gradients and optimizer state, in the
 * order in which its kernels read them: physical = reshape(logical, split) with axis i of the result being axis
 * permute[i]. split_rank 0: as it is. */
typedef struct {
  const char *name, *role; /* parameter, optimizer, buffer, constant; input, target, sample_weight, seed,
                              channels; output, gradient, feature */
  gf_dtype dtype;
  int rank;
  const int64_t *shape;
  int split_rank;
  const int64_t *split;
  const int *permute;
  size_t bytes;
} gf_value;

/* 64 hex digits; equals "build_id" of the manifest this library belongs to. */
GF_API const char *gf_build_id(void);

/* What was compiled. */
typedef struct {
  const char *name, *target, *version; /* of the artifact, of the machine it is for, of the compiler */
  const char *loss;
  float lr;             /* the learning rate to start with */
  int batch;            /* samples in a step */
  int pads;             /* 1: a smaller batch may be padded with samples of weight 0 */
  int classes;          /* targets are 0 .. classes - 1; 0: the loss has none */
  int has_ignored;      /* 1: targets equal to `ignored` count for nothing */
  int64_t ignored;
} gf_about;
GF_API const gf_about *gf_step_about(void);

/* The step of an artifact's folder with its compiled-in weights. The files must be those that were compiled: their
 * checksums, that of a libstep.so there too, are compared with the manifest's, which has its own. threads <= 0 takes all cores that the process may use. NULL on failure:
 * see gf_error() and gf_error_code(). Results do not depend on the number of threads, nor on which did what. */
GF_API gf_step *gf_step_open(const char *folder, int threads);
/* The same with a state of zeros, for callers that fill it themselves. */
GF_API gf_step *gf_step_create(int threads);
GF_API void gf_step_destroy(gf_step *step);
GF_API int gf_step_threads(const gf_step *step);
GF_API int gf_step_set_threads(gf_step *step, int threads);

/* What the step keeps, takes and gives, in the order of the arrays that its functions take. NULL for an index out of
 * range. gf_step_find gives an index, or -1; a NULL role fits all. */
typedef enum { GF_KIND_STATE, GF_KIND_INPUT, GF_KIND_OUTPUT, GF_KIND_GRADIENT, GF_KIND_FEATURE } gf_kind;
GF_API int gf_step_count(gf_kind kind);
GF_API const gf_value *gf_step_value(gf_kind kind, int index);
GF_API int gf_step_find(gf_kind kind, const char *role, const char *name);

/* A whole tensor from the library's order to the model's, and back. */
GF_API void gf_to_logical(const gf_value *value, const void *physical, void *logical);
GF_API void gf_to_physical(const gf_value *value, const void *logical, void *physical);

/* A trained parameter, or a buffer that the step updates, by the model's name and in the model's layout. `bytes` is
 * the caller's size, which must be the tensor's. */
GF_API int gf_step_get_parameter(gf_step *step, const char *name, void *logical, size_t bytes);
GF_API int gf_step_set_parameter(gf_step *step, const char *name, const void *logical, size_t bytes);

/* How far a training has come; what a checkpoint holds beside the tensors. */
typedef struct {
  int64_t steps;
  double lr;
  char note[256];  /* the program's own words, kept as they are: an epoch, a position in the data */
  char fault[512]; /* set by gf_step_load: why the newest checkpoint was left for the one before; else empty */
} gf_progress;

/* Checkpoints: parameters, optimizer state and buffers in the model's layout, in one safetensors file that
 * every build of the same plan reads, as the Python wrapper does. The last one stays beside it as PATH.previous, and
 * at every moment, a kill or a power cut included, one of the two is whole: gf_step_load takes the newest that is. A
 * failed load changes nothing. No other thread may train the step meanwhile.
 *
 * A state that is not finite, or that an update with a loss which is not finite has left, is never saved:
 * GF_ERROR_DIVERGED, with the files as they were. */
GF_API int gf_step_save(gf_step *step, const char *path, const gf_progress *progress);
GF_API int gf_step_load(gf_step *step, const char *path, gf_progress *progress);
/* Keep all others from saving there until the step is destroyed or the process ends; GF_ERROR_FILE if another process
 * is doing the same. Save under the very same path. */
GF_API int gf_step_hold(gf_step *step, const char *path);

/* Compute loss and gradients of the batch that the artifact brings along and compare them with what PyTorch made of
 * it when the step was compiled. Each comparison is one line for `line` (NULL: none). The state must be the
 * compiled-in one. GF_ERROR_KERNEL when a value is outside its tolerance. */
GF_API int gf_step_selftest(gf_step *step, const char *folder, void (*line)(void *context, const char *text),
                            void *context);

/* A sparse step updates, of some convolutions, the weights of a few input channels only. Which, is an input of role
 * "channels" for each of them: int32, ascending, in the manifest's order. Pass NULL there and the step draws them, as a
 * function of this state: each step, each epoch or once, as compiled. gf_step_train counts its steps here; checkpoints
 * keep the state, and gf_step_load sets it (from one of a step without draws: its step count alone). */
typedef struct {
  uint32_t seed;
  int64_t steps, epoch;
} gf_draw_state;
GF_API int gf_step_get_draws(gf_step *step, gf_draw_state *state);
GF_API int gf_step_set_draws(gf_step *step, const gf_draw_state *state);
/* What the next step draws for the input of this index. */
GF_API int gf_step_draw(gf_step *step, int input, int32_t *channels);

/* State tensors in the manifest's order, in their physical layout. NULL or 0 for an index out of range; NULL too where
 * the state is not this process's memory. */
GF_API int gf_step_tensor_count(void);
GF_API size_t gf_step_tensor_bytes(int index);
GF_API void *gf_step_tensor(gf_step *step, int index);
/* Copy a state tensor out or in, whole and in its physical layout, from or to this process's memory. */
GF_API int gf_step_get(gf_step *step, int index, void *physical);
GF_API int gf_step_set(gf_step *step, int index, const void *physical);

/* Inputs come in the manifest's order (gf_step_predict: only those of role "input"). loss may be NULL. Gradients are of
 * whole parameters, zero for channels that were not drawn. After
 * GF_ERROR_KERNEL of gf_step_train the state may be partly updated: reload it. */
GF_API int gf_step_train(gf_step *step, const void *const *inputs, float lr, float *loss);
GF_API int gf_step_gradients(gf_step *step, const void *const *inputs, float *loss, void *const *gradients);
GF_API int gf_step_predict(gf_step *step, const void *const *inputs, void *const *outputs);

/* Only in libraries that were compiled with a prefix cache. gf_step_features computes what the frozen part of the
 * network makes of the inputs of role "input", in the order of the manifest's features; gf_step_train_features is
 * gf_step_train with the features in place of those inputs. The first is the same in every epoch, so keep it. */
GF_API int gf_step_features(gf_step *step, const void *const *inputs, void *const *features);
GF_API int gf_step_train_features(gf_step *step, const void *const *inputs, float lr, float *loss);

/* What gf_step_create allocates, beside tables of a few kilobytes: the arena, the state, and scratch per thread. On a
 * GPU also room for the largest call's inputs and results. */
GF_API size_t gf_step_arena_bytes(void);
GF_API size_t gf_step_state_bytes(void);
GF_API size_t gf_step_scratch_bytes(void);

/* This thread's last failure: its text, empty when its last call succeeded, and its gf_code. */
GF_API const char *gf_error(void);
GF_API int gf_error_code(void);

#ifdef __cplusplus
}
#endif
#endif
