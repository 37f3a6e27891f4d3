/* The caller's arrays where the kernels can reach them. Internal: never exported.
 *
 * Where the device is this process that is where they are, and nothing is copied. Elsewhere inputs are copied to a
 * block of the device before a program runs, and what it gives is copied back behind it. */
#ifndef GF_DOORS_H
#define GF_DOORS_H

#include "gf_program.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

typedef struct {
  _Alignas(64) float host_lr[16]; /* a cache line each */
  float host_loss[16];
  float *lr, *loss;      /* what programs get */
  char *block;           /* NULL where the device is this process: lr, loss, what is taken, what is given */
  size_t given_at;       /* in the block */
  void **taken, **given; /* into the block, in the order of a program's arrays */
} gf_doors;

/* What a program takes, and in which order: all inputs; those of role "input"; features, then the other inputs. */
typedef enum { GF_TAKES_INPUTS, GF_TAKES_SAMPLES, GF_TAKES_FEATURES } gf_takes;

/* Walks over what a program takes, `*position` from 0 on: the next value, NULL behind the last. */
const gf_value *gf_doors_next(gf_takes what, int *position);

int gf_doors_open(gf_doors *doors);
void gf_doors_close(gf_doors *doors);

/* The inputs as the program gets them; NULL with a text. */
const void *const *gf_doors_take(gf_doors *doors, gf_takes what, const void *const *inputs);
int gf_doors_set_lr(gf_doors *doors, float lr);

/* Where the program writes these values, so that gf_doors_deliver can bring them to `out` behind it. */
void *const *gf_doors_give(gf_doors *doors, const gf_values *values, void *const *out);
/* Both are complete behind gf_device_finish; the loss is then in host_loss. */
int gf_doors_deliver(gf_doors *doors, const gf_values *values, void *const *out);
int gf_doors_get_loss(gf_doors *doors);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
