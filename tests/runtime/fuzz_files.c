/* Files that somebody or something has changed, read under the sanitizers.
 *
 *     fuzz_files ARTIFACT FILE.safetensors SCRATCH
 *
 * Every copy lies at the end of its pages with a forbidden page behind it, so that one byte too far is the end. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gf_tensorfile.h"

enum { ROUNDS = 20000, MOST = 1 << 16 };
static uint32_t state = 1;
static unsigned sum; /* of all values read: nobody may skip the reading */

static uint32_t draw(uint32_t below) {
  state = state * 1664525u + 1013904223u;
  return (uint32_t)((uint64_t)state * below >> 32);
}

static void fail(const char *what) {
  fprintf(stderr, "fuzz_files: %s: %s\n", what, gf_error());
  exit(1);
}

static size_t read_whole(const char *path, unsigned char *bytes) {
  FILE *file = fopen(path, "rb");
  size_t count = file ? fread(bytes, 1, MOST, file) : 0;
  if (!count) fail(path);
  fclose(file);
  return count;
}

/* A few changes of the kinds that disks, networks and attackers make. */
static size_t change(unsigned char *bytes, size_t count) {
  static const char pieces[] = "{}[]\",:\\u0129-eE.\0\x7f\xff";
  for (uint32_t left = 1 + draw(4); left; --left) {
    size_t at = draw((uint32_t)count);
    switch (draw(6)) {
      case 0: bytes[at] ^= (unsigned char)(1u << draw(8)); break;
      case 1: bytes[at] = (unsigned char)pieces[draw(sizeof pieces)]; break;
      case 2: count = at ? at : count; break;
      case 3: bytes[draw(count < 8 ? (uint32_t)count : 8)] = (unsigned char)draw(256); break;
      case 4: memmove(bytes + at, bytes + at + 1, count - at - 1); break;
      default: bytes[draw(count < 400 ? (uint32_t)count : 400)] = (unsigned char)pieces[draw(sizeof pieces)];
    }
  }
  return count;
}

static gf_map at_the_edge(const unsigned char *bytes, size_t count, unsigned char *pages, size_t size) {
  unsigned char *place = pages + size - count;
  memcpy(place, bytes, count);
  return (gf_map){place, count};
}

/* Parsed, and every byte of every tensor read. The pages are unmapped with the file, if it was taken apart. */
static int parse(const unsigned char *bytes, size_t count) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (count + page - 1) / page * page;
  unsigned char *pages = mmap(NULL, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED || mprotect(pages + size, page, PROT_NONE)) fail("mmap");
  gf_tensorfile file;
  gf_map map = at_the_edge(bytes, count, pages, size);
  gf_json *tree = gf_json_parse((const char *)map.data, map.bytes);
  free(tree);
  int code = gf_tensorfile_parse("copy", map, &file);
  if (!code) {
    for (int i = 0; i < file.count; ++i) {
      if (gf_tensorfile_find(&file, file.tensors[i].name) != &file.tensors[i]) fail("a tensor is not found");
      for (size_t at = 0; at < file.tensors[i].bytes; ++at) sum += ((const unsigned char *)file.tensors[i].data)[at];
    }
    gf_tensorfile_word(&file, "format");
    gf_tensorfile_close(&file);
  }
  munmap(pages, size + page);
  return code;
}

static void write_whole(const char *path, const unsigned char *bytes, size_t count) {
  FILE *file = fopen(path, "wb");
  if (!file || fwrite(bytes, 1, count, file) != count || fclose(file)) fail(path);
}

/* No changed byte of a checkpoint goes unnoticed, and a refused one changes nothing. */
static void flip_checkpoint(const char *folder, const char *path) {
  static unsigned char bytes[MOST];
  gf_progress progress = {.steps = 3, .lr = 0.25, .note = "a \"note\"\\\n"}, found = {.steps = 77};
  float before[6], after[6];
  gf_step *step = gf_step_open(folder, 1);
  if (!step || gf_step_save(step, path, &progress) || gf_step_load(step, path, &found)) fail("a whole checkpoint");
  if (found.steps != 3 || found.lr != 0.25 || strcmp(found.note, progress.note)) fail("another progress");
  size_t count = read_whole(path, bytes);
  if (gf_step_get_parameter(step, "fc.weight", before, sizeof before)) fail("a parameter");
  found.steps = 77;
  for (size_t i = 0; i < count; ++i) {
    bytes[i] ^= 1;
    write_whole(path, bytes, count);
    if (!gf_step_load(step, path, &found) || found.steps != 77) fail("a flipped bit was not noticed");
    bytes[i] ^= 1;
    write_whole(path, bytes, i);
    if (!gf_step_load(step, path, &found)) fail("a cut was not noticed");
  }
  if (gf_step_get_parameter(step, "fc.weight", after, sizeof after)) fail("a parameter");
  if (memcmp(before, after, sizeof before)) fail("a refused checkpoint changed the state");
  gf_step_destroy(step);
}

int main(int count, char **words) {
  static unsigned char whole[MOST], bytes[MOST];
  if (count != 4) fail("usage: fuzz_files ARTIFACT FILE.safetensors SCRATCH");
  size_t size = read_whole(words[2], whole);
  if (parse(whole, size)) fail("the file as it was");
  int refused = 0;
  for (int round = 0; round < ROUNDS; ++round) {
    memcpy(bytes, whole, size);
    refused += parse(bytes, change(bytes, size)) != GF_OK;
  }
  if (refused < ROUNDS / 2 || refused == ROUNDS) fail("the changes do not change enough, or too much");
  flip_checkpoint(words[1], words[3]);
  printf("ok %d of %d refused, %u\n", refused, ROUNDS, sum);
  return 0;
}
