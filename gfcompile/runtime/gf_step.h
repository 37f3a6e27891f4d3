/* The compiled training step: the public C interface of libstep.so.
 *
 * Memory is allocated in gf_step_create and gf_step_set_threads only, never inside a step. (The C library itself sets
 * up a thread's locals, some 300 bytes, when that thread first calls in here; gf_error() will do for that.)
 * Calls are safe from any thread; the steps of one library run one at a time, each on its own number of threads. A
 * child made by fork() keeps its steps and gets its worker threads back at its next call.
 * Inputs, outputs and gradients must be 64-byte aligned, since the kernels load them as whole vectors, and must not
 * overlap: outputs and gradients are written while inputs are still read. */
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
  const char *name, *role; /* parameter, optimizer, buffer, constant; input, target, sample_weight, seed; output,
                              gradient, feature */
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

/* threads <= 0 takes all cores that the process may use. NULL on failure, see gf_error(). The state starts as zeros:
 * fill it through gf_step_tensor(). Results do not depend on the number of threads, nor on which of them did what. */
GF_API gf_step *gf_step_create(int threads);
GF_API void gf_step_destroy(gf_step *step);
GF_API int gf_step_threads(const gf_step *step);
GF_API int gf_step_set_threads(gf_step *step, int threads);

/* State tensors in the manifest's order, in their physical layout. NULL or 0 for an index out of range. */
GF_API int gf_step_tensor_count(void);
GF_API size_t gf_step_tensor_bytes(int index);
GF_API void *gf_step_tensor(gf_step *step, int index);
/* Copy a state tensor out or in, whole and in its physical layout, from or to this process's memory. */
GF_API int gf_step_get(gf_step *step, int index, void *physical);
GF_API int gf_step_set(gf_step *step, int index, const void *physical);

/* Each returns 0, or a failing kernel's nonzero code with its text in gf_error(). Inputs come in the manifest's order
 * (gf_step_predict: only those of role "input"). loss may be NULL. After a failed gf_step_train the state may be
 * partly updated: reload it. */
GF_API int gf_step_train(gf_step *step, const void *const *inputs, float lr, float *loss);
GF_API int gf_step_gradients(gf_step *step, const void *const *inputs, float *loss, void *const *gradients);
GF_API int gf_step_predict(gf_step *step, const void *const *inputs, void *const *outputs);

/* Only in libraries that were compiled with a prefix cache. gf_step_features computes what the frozen part of the
 * network makes of the inputs of role "input", in the order of the manifest's features; gf_step_train_features is
 * gf_step_train with the features in place of those inputs. The first is the same in every epoch, so keep it. */
GF_API int gf_step_features(gf_step *step, const void *const *inputs, void *const *features);
GF_API int gf_step_train_features(gf_step *step, const void *const *inputs, float lr, float *loss);

/* What gf_step_create allocates, beside tables of a few kilobytes: the arena, the state, and scratch a thread. */
GF_API size_t gf_step_arena_bytes(void);
GF_API size_t gf_step_state_bytes(void);
GF_API size_t gf_step_scratch_bytes(void);

/* Text of this thread's last failure; empty when its last call succeeded. */
GF_API const char *gf_error(void);

#ifdef __cplusplus
}
#endif
#endif
