/* Safetensors files, mapped and not read: weights need not fit twice into a board's memory. Internal: never exported.
 *
 * Failures are gf_codes with a text. */
#ifndef GF_TENSORFILE_H
#define GF_TENSORFILE_H

#include "gf_json.h"
#include "gf_step.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

enum { GF_MAX_RANK = 8 };

typedef struct {
  const unsigned char *data;
  size_t bytes;
} gf_map;

typedef struct {
  const char *name;
  gf_dtype dtype;
  int rank;
  int64_t shape[GF_MAX_RANK];
  const void *data; /* not aligned */
  size_t bytes;
} gf_tensor;

typedef struct {
  gf_map map;
  gf_json *header;
  gf_tensor *tensors; /* in the order of their names */
  int count;
} gf_tensorfile;

int gf_map_file(const char *path, gf_map *map);
void gf_unmap(gf_map *map);

/* Take the mapped file apart; it is unmapped by gf_tensorfile_close, or here on failure. */
int gf_tensorfile_parse(const char *path, gf_map map, gf_tensorfile *file);
int gf_tensorfile_open(const char *path, gf_tensorfile *file);
void gf_tensorfile_close(gf_tensorfile *file);
const gf_tensor *gf_tensorfile_find(const gf_tensorfile *file, const char *name);
/* A word of the metadata, or NULL. */
const char *gf_tensorfile_word(const gf_tensorfile *file, const char *key);
/* Has the tensor the logical shape and the type of the value? */
int gf_tensor_fits(const gf_tensor *tensor, const gf_value *value);

const char *gf_dtype_code(gf_dtype dtype); /* as these files have it: F32 */
size_t gf_dtype_bytes(gf_dtype dtype);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
