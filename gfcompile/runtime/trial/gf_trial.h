/* A trial: a candidate for a kernel beside the kernel as it is, compared and timed in turn on a step's own threads. */
#ifndef GF_TRIAL_H
#define GF_TRIAL_H

#include <stddef.h>

typedef enum { GF_TRIAL_FLOAT, GF_TRIAL_SIGNED, GF_TRIAL_UNSIGNED, GF_TRIAL_BOOL } gf_trial_type;

typedef struct {
  size_t count; /* of elements */
  gf_trial_type type;
  int element_bytes;
  int is_output;
} gf_trial_operand;

typedef struct {
  const char *name; /* for texts */
  int (*run)(void *const *operands); /* after the last operand, the shared workspace, for those that take it so */
  size_t shared, each; /* bytes of workspace: outside parallel loops, and of each thread inside */
  int (*prepare)(void *const *operands); /* NULL, or: runs once, and writes what `run` takes for an operand, ... */
  size_t prepared;                       /* ... so many bytes, after the workspace */
} gf_trial_kernel;

/* Generated for each trial, and hidden. */
#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif
extern const gf_trial_operand gf_trial_operands[];
extern const int gf_trial_operand_count;
extern const gf_trial_kernel gf_trial_candidate, gf_trial_reference;
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

/* Writes one JSON object, {"error": e, "candidate": [seconds per run, one number per turn], "reference": [...]} or
 * {"failure": "text"}. The error is max |candidate - reference| / max |reference| of the worst output; Infinity where
 * the reference is finite and the candidate is not. Each turn runs each kernel for `block_seconds`, or once, or a few
 * times if it is short; before every run the caches are filled with something else. A GPU's runs are queued instead.
 *
 * 0, or -1 where `bytes` do not hold the text. Not to be called by two threads at a time. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
int gf_trial_run(int repeats, double block_seconds, char *json, size_t bytes);

#endif
