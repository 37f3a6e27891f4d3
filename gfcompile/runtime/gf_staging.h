/* The caller's arrays where the kernels can reach them. Internal: never exported.
 *
 * Where the device is this process that is where they are, and nothing is copied. Elsewhere inputs are copied to a
 * block of the device before a program runs, and its outputs are copied back afterwards. */
#ifndef GF_STAGING_H
#define GF_STAGING_H

#include "gf_program.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

typedef struct {
  _Alignas(64) float host_lr[16]; /* a cache line each */
  float host_loss[16];
  float *lr, *loss;      /* what programs get */
  char *block;           /* NULL where the device is this process: lr, loss, inputs, outputs */
  size_t given_at;       /* in the block */
  void **taken, **given; /* into the block, in the order of a program's arrays */
} gf_staging;

/* The inputs of a program, in order: all inputs; those of role "input"; features, then the other inputs. */
typedef enum { GF_TAKES_INPUTS, GF_TAKES_SAMPLES, GF_TAKES_FEATURES } gf_takes;

/* Walks over a program's inputs, `*position` from 0 on: the next value, NULL after the last. */
const gf_value *gf_staging_next(gf_takes what, int *position);

int gf_staging_open(gf_staging *staging);
void gf_staging_close(gf_staging *staging);

/* The inputs as the program gets them; NULL with a text. */
const void *const *gf_staging_take(gf_staging *staging, gf_takes what, const void *const *inputs);
int gf_staging_set_lr(gf_staging *staging, float lr);

/* Where the program writes these values, so that gf_staging_deliver can bring them to `out` afterwards. */
void *const *gf_staging_give(gf_staging *staging, const gf_values *values, void *const *out);
/* Both are complete after gf_device_finish; the loss is then in host_loss. */
int gf_staging_deliver(gf_staging *staging, const gf_values *values, void *const *out);
int gf_staging_get_loss(gf_staging *staging);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
