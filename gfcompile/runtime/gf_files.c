/* gf_step_open: an artifact's folder as a step. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gf_files.h"
#include "gf_manifest.h"
#include "gf_pool.h"
#include "gf_program.h"
#include "gf_state.h"

char *gf_join(const char *folder, const char *name) {
  size_t bytes = strlen(folder) + strlen(name) + 2;
  char *path = malloc(bytes);
  if (path) snprintf(path, bytes, "%s/%s", folder, name);
  else gf_fail(GF_ERROR_MEMORY, "no memory for a path; free some");
  return path;
}

static int check_build(const char *path, const gf_json *manifest) {
  const char *found = gf_json_string(manifest, "build_id");
  const char *build = found && strspn(found, "0123456789abcdef") == strlen(found) ? found : "";
  if (strcmp(build, gf_program_build_id) == 0) return GF_OK;
  return gf_fail(GF_ERROR_MISMATCH,
                 "'%s': its build id %.12s is not the library's %.12s; link to this folder's library, " GF_COPY_AGAIN,
                 path, build, gf_program_build_id);
}

int gf_read_manifest(const char *folder, gf_json **manifest) {
  gf_map map;
  const char *wrong;
  char *path = gf_join(folder, "manifest.json");
  *manifest = NULL;
  if (!path) return GF_ERROR_MEMORY;
  int code = gf_map_file(path, &map);
  if (code) gf_fail(code, "'%s': no manifest.json there; pass the folder that gfcompile wrote", folder);
  else if ((code = gf_manifest_parse(map.data, map.bytes, manifest, &wrong))) gf_fail(code, "'%s': %s", path, wrong);
  else code = check_build(path, *manifest);
  if (code) free(*manifest), *manifest = NULL;
  gf_unmap(&map);
  free(path);
  return code;
}

static int map_checked(const char *path, const gf_json *manifest, const char *name, gf_map *map) {
  int code = gf_map_file(path, map);
  if (code || gf_manifest_fits(manifest, name, map->data, map->bytes)) return code;
  gf_unmap(map);
  return gf_fail(GF_ERROR_CHECKSUM, "'%s': its content is not what was compiled (truncated or changed); " GF_COPY_AGAIN,
                 path);
}

int gf_open_checked(const char *folder, const gf_json *manifest, const char *name, gf_tensorfile *file) {
  gf_map map;
  char *path = gf_join(folder, name);
  if (!path) return GF_ERROR_MEMORY;
  int code = map_checked(path, manifest, name, &map);
  if (!code) code = gf_tensorfile_parse(path, map, file);
  free(path);
  return code;
}

/* The code that runs here was mapped from that file, as a rule: its damage would show in the numbers only. Where there
 * is none, it was linked from elsewhere, or this program holds everything itself. */
static int check_library(const char *folder, const gf_json *manifest) {
  static const char name[] = "libstep.so";
  gf_map map;
  char *path = gf_join(folder, name);
  if (!path) return GF_ERROR_MEMORY;
  int code = GF_OK;
  if (gf_manifest_lists(manifest, name) && access(path, F_OK) == 0) {
    code = map_checked(path, manifest, name, &map);
    if (!code) gf_unmap(&map);
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
      code = gf_fail(GF_ERROR_MISMATCH, "'%s': has no fitting tensor '%.100s' among its %s; " GF_COPY_AGAIN, folder,
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
  if (!check_library(folder, manifest) && !gf_open_checked(folder, manifest, "weights.safetensors", &weights)) {
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
