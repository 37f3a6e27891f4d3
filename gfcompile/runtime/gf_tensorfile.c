#define _DEFAULT_SOURCE
#include "gf_tensorfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gf_pool.h"

static const struct {
  const char *code;
  size_t bytes;
} types[] = {[GF_FLOAT32] = {"F32", 4}, [GF_FLOAT16] = {"F16", 2}, [GF_FLOAT64] = {"F64", 8},
             [GF_INT64] = {"I64", 8},   [GF_INT32] = {"I32", 4},   [GF_INT16] = {"I16", 2},
             [GF_INT8] = {"I8", 1},     [GF_UINT8] = {"U8", 1},    [GF_BOOL] = {"BOOL", 1}};
enum { TYPES = sizeof types / sizeof *types };

const char *gf_dtype_code(gf_dtype dtype) { return types[dtype].code; }
size_t gf_dtype_bytes(gf_dtype dtype) { return types[dtype].bytes; }

int gf_map_file(const char *path, gf_map *map) {
  struct stat about;
  *map = (gf_map){(const unsigned char *)"", 0};
  int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a FIFO would wait for a writer */
  int failed = file < 0 || fstat(file, &about);
  if (!failed && !S_ISREG(about.st_mode)) failed = 1, errno = S_ISDIR(about.st_mode) ? EISDIR : EINVAL;
  if (!failed && about.st_size) {
    void *data = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    failed = data == MAP_FAILED;
    if (!failed) *map = (gf_map){data, (size_t)about.st_size};
  }
  int reason = errno;
  if (file >= 0) close(file);
  return failed ? gf_fail(GF_ERROR_FILE, "'%s': cannot be read: %s; check the path", path, strerror(reason)) : GF_OK;
}

void gf_unmap(gf_map *map) {
  if (map->bytes) munmap((void *)map->data, map->bytes);
  *map = (gf_map){(const unsigned char *)"", 0};
}

static const char *read_entry(const gf_json *entry, gf_map data, gf_tensor *tensor) {
  const char *code = gf_json_string(entry, "dtype");
  const gf_json *shape = gf_json_member(entry, "shape"), *place = gf_json_member(entry, "data_offsets");
  int type = 0;
  int64_t start, stop;
  tensor->name = entry->key;
  while (type < TYPES && code && strcmp(code, types[type].code) != 0) ++type;
  if (!code || type == TYPES) return "has an unknown dtype";
  tensor->dtype = (gf_dtype)type;
  size_t bytes = types[type].bytes;
  if (!shape || shape->type != GF_JSON_ARRAY) return "has no shape";
  for (const gf_json *axis = shape->child; axis; axis = axis->next) {
    if (tensor->rank == GF_MAX_RANK) return "has more than 8 axes";
    int64_t size;
    if (!gf_json_whole(axis, &size) || __builtin_mul_overflow(bytes, (size_t)size, &bytes)) return "has a wrong shape";
    tensor->shape[tensor->rank++] = size;
  }
  if (!place || place->type != GF_JSON_ARRAY || !gf_json_whole(place->child, &start) ||
      !gf_json_whole(place->child->next, &stop) || place->child->next->next || stop < start ||
      (size_t)(stop - start) != bytes)
    return "does not fit its place";
  if ((uint64_t)stop > data.bytes) return "is cut off";
  tensor->data = data.data + start;
  tensor->bytes = bytes;
  return NULL;
}

static int by_place(const void *a, const void *b) {
  const gf_tensor *left = a, *right = b;
  if (left->data != right->data) return left->data < right->data ? -1 : 1;
  return (left->bytes > right->bytes) - (left->bytes < right->bytes); /* empty ones before who starts there */
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const gf_tensor *)a)->name, ((const gf_tensor *)b)->name);
}

static int refuse(const char *path, const char *what) {
  return gf_fail(GF_ERROR_FORMAT, "'%s': not a whole safetensors file: %s; use another copy", path, what);
}

static int read_header(const char *path, gf_tensorfile *file) {
  const unsigned char *bytes = file->map.data;
  uint64_t length = 0;
  if (file->map.bytes < 8) return refuse(path, "it has no header");
  for (int i = 0; i < 8; ++i) length |= (uint64_t)bytes[i] << 8 * i;
  if (length > file->map.bytes - 8) return refuse(path, "its header is cut off");
  file->header = gf_json_parse((const char *)bytes + 8, (size_t)length);
  if (!file->header || file->header->type != GF_JSON_OBJECT) return refuse(path, "its header is damaged");
  size_t entries = 0;
  for (const gf_json *entry = file->header->child; entry; entry = entry->next) ++entries;
  file->tensors = calloc(entries + 1, sizeof *file->tensors);
  if (!file->tensors) return gf_fail(GF_ERROR_MEMORY, "'%s': no memory for its header; free some", path);
  gf_map data = {bytes + 8 + length, file->map.bytes - 8 - (size_t)length};
  for (const gf_json *entry = file->header->child; entry; entry = entry->next) {
    if (strcmp(entry->key, "__metadata__") == 0) continue;
    const char *wrong = read_entry(entry, data, &file->tensors[file->count++]);
    if (wrong)
      return gf_fail(GF_ERROR_FORMAT, "'%s': not a whole safetensors file: tensor '%.100s' %s; use another copy", path,
                     entry->key, wrong);
  }
  const unsigned char *end = data.data;
  qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, by_place);
  for (int i = 0; i < file->count; end = (const unsigned char *)file->tensors[i].data + file->tensors[i].bytes, ++i)
    if (file->tensors[i].data != end) return refuse(path, "its tensors leave gaps or overlap");
  if (end != data.data + data.bytes) return refuse(path, "bytes follow its last tensor");
  qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, by_name);
  for (int i = 1; i < file->count; ++i)
    if (by_name(&file->tensors[i - 1], &file->tensors[i]) == 0) return refuse(path, "two tensors share a name");
  return GF_OK;
}

int gf_tensorfile_parse(const char *path, gf_map map, gf_tensorfile *file) {
  *file = (gf_tensorfile){.map = map};
  int code = read_header(path, file);
  if (code) gf_tensorfile_close(file);
  return code;
}

int gf_tensorfile_open(const char *path, gf_tensorfile *file) {
  gf_map map;
  *file = (gf_tensorfile){.map = {(const unsigned char *)"", 0}};
  int code = gf_map_file(path, &map);
  return code ? code : gf_tensorfile_parse(path, map, file);
}

void gf_tensorfile_close(gf_tensorfile *file) {
  free(file->header);
  free(file->tensors);
  gf_unmap(&file->map);
  *file = (gf_tensorfile){.map = file->map};
}

const gf_tensor *gf_tensorfile_find(const gf_tensorfile *file, const char *name) {
  gf_tensor wanted = {.name = name};
  return file->count ? bsearch(&wanted, file->tensors, (size_t)file->count, sizeof wanted, by_name) : NULL;
}

const char *gf_tensorfile_word(const gf_tensorfile *file, const char *key) {
  return gf_json_string(gf_json_member(file->header, "__metadata__"), key);
}

int gf_tensor_fits(const gf_tensor *tensor, const gf_value *value) {
  if (tensor->dtype != value->dtype || tensor->rank != value->rank) return 0;
  for (int i = 0; i < value->rank; ++i)
    if (tensor->shape[i] != value->shape[i]) return 0;
  return 1;
}
