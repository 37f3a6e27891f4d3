/* gf_step_open: an artifact's folder as a step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gf_files.h"
#include "gf_pool.h"
#include "gf_program.h"
#include "gf_sha256.h"
#include "gf_state.h"

enum { FORMAT = 1 };
#define AGAIN "recompile, or copy the artifact again"

char *gf_join(const char *folder, const char *name) {
  size_t bytes = strlen(folder) + strlen(name) + 2;
  char *path = malloc(bytes);
  if (path) snprintf(path, bytes, "%s/%s", folder, name);
  else gf_fail(GF_ERROR_MEMORY, "no memory for a path; free some");
  return path;
}

static int check_manifest(const char *path, const gf_json *manifest) {
  int64_t format;
  if (!manifest) return gf_fail(GF_ERROR_FORMAT, "'%s': is damaged; " AGAIN, path);
  if (!gf_json_whole(gf_json_member(manifest, "format"), &format) || format != FORMAT)
    return gf_fail(GF_ERROR_FORMAT, "'%s': has another format, this runtime reads format %d; recompile the artifact",
                   path, FORMAT);
  const char *build = gf_json_string(manifest, "build_id");
  if (!build || strcmp(build, gf_program_build_id) != 0)
    return gf_fail(GF_ERROR_MISMATCH, "'%s': its build id %.12s is not the library's %.12s; link to this folder's library, " AGAIN, path,
                   build ? build : "", gf_program_build_id);
  return GF_OK;
}

int gf_read_manifest(const char *folder, gf_json **manifest) {
  gf_map map;
  char *path = gf_join(folder, "manifest.json");
  if (!path) return GF_ERROR_MEMORY;
  int code = gf_map_file(path, &map);
  if (code) gf_fail(code, "'%s': no manifest.json there; pass the folder that gfcompile wrote", folder);
  *manifest = code ? NULL : gf_json_parse((const char *)map.data, map.bytes);
  if (!code) code = check_manifest(path, *manifest);
  if (code) free(*manifest), *manifest = NULL;
  gf_unmap(&map);
  free(path);
  return code;
}

int gf_open_checked(const char *folder, const gf_json *manifest, const char *name, gf_tensorfile *file) {
  gf_map map;
  char digits[GF_SHA256_DIGITS + 1];
  char *path = gf_join(folder, name);
  if (!path) return GF_ERROR_MEMORY;
  const char *wanted = gf_json_string(gf_json_member(manifest, "files"), name);
  int code = gf_map_file(path, &map);
  if (!code) {
    gf_sha256_of(map.data, map.bytes, digits);
    if (wanted && strcmp(wanted, digits) == 0) code = gf_tensorfile_parse(path, map, file);
    else
      gf_unmap(&map), code = gf_fail(GF_ERROR_CHECKSUM,
                                     "'%s': its content is not what was compiled (truncated or changed); " AGAIN, path);
  }
  free(path);
  return code;
}

static int fill(gf_step *step, const char *folder, const gf_tensorfile *weights, const gf_tensorfile *constants) {
  void *scratch = gf_state_scratch();
  int code = scratch ? GF_OK : GF_ERROR_MEMORY;
  for (int i = 0; i < gf_state_values.count && !code; ++i) {
    const gf_value *value = &gf_state_values.values[i];
    if (strcmp(value->role, "optimizer") == 0) continue; /* starts as zeros */
    const gf_tensorfile *file = strcmp(value->role, "constant") ? weights : constants;
    const gf_tensor *tensor = gf_tensorfile_find(file, value->name);
    if (!tensor || !gf_tensor_fits(tensor, value))
      code = gf_fail(GF_ERROR_MISMATCH, "'%s': has no fitting tensor '%.100s' among its %s; " AGAIN, folder,
                     value->name, file == weights ? "weights" : "constants");
    else code = gf_state_write(step, i, tensor->data, scratch);
  }
  free(scratch);
  return code;
}

gf_step *gf_step_open(const char *folder, int threads) {
  gf_tensorfile weights, constants;
  gf_json *manifest;
  gf_step *step = NULL;
  if (!folder) {
    gf_fail(GF_ERROR_ARGUMENT, "gf_step_open: the folder is NULL");
    return NULL;
  }
  if (gf_read_manifest(folder, &manifest)) return NULL;
  if (!gf_open_checked(folder, manifest, "weights.safetensors", &weights)) {
    if (!gf_open_checked(folder, manifest, "constants.safetensors", &constants)) {
      step = gf_step_create(threads);
      if (step && fill(step, folder, &weights, &constants)) {
        gf_step_destroy(step);
        step = NULL;
      }
      gf_tensorfile_close(&constants);
    }
    gf_tensorfile_close(&weights);
  }
  free(manifest);
  return step;
}
