/* Checkpoints: checkpoint.py in C. One safetensors file; its header begins with the checksum, which is SHA-256 over the
 * whole file with the checksum's own 64 digits taken as zeros. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gf_generations.h"
#include "gf_pool.h"
#include "gf_program.h"
#include "gf_sha256.h"
#include "gf_state.h"
#include "gf_tensorfile.h"

static const char format[] = "gfcompile-checkpoint-2";
static const char seal[] = "{\"__metadata__\": {\"sha256\": \""; /* what the header begins with: the digits follow */
enum { SEAL = sizeof seal - 1, DIGITS_AT = 8 + SEAL };
static const char zeros[] = "0000000000000000000000000000000000000000000000000000000000000000";

static void write_word(FILE *out, const char *key, const char *word) {
  fprintf(out, ", \"%s\": \"", key);
  gf_json_write(out, word);
  fputc('"', out);
}

/* The header with its length before it; the digits of the checksum are zeros. NULL for want of memory. */
static char *make_header(const gf_progress *progress, const gf_draw_state *draws, size_t *bytes) {
  char *text = NULL, steps[32], lr[40], drawn[80];
  FILE *out = open_memstream(&text, bytes);
  if (!out) return NULL;
  snprintf(steps, sizeof steps, "%lld", (long long)progress->steps);
  snprintf(lr, sizeof lr, "%.17g", progress->lr);
  fprintf(out, "%8s%s%s\"", "", seal, zeros);
  write_word(out, "format", format);
  write_word(out, "artifact", gf_program_about.name);
  write_word(out, "build_id", gf_program_build_id);
  write_word(out, "compatible", gf_program_compatible);
  write_word(out, "frozen", gf_program_frozen);
  write_word(out, "steps", steps);
  write_word(out, "lr", lr);
  write_word(out, "note", progress->note);
  snprintf(drawn, sizeof drawn, "seed %" PRIu32 " steps %" PRId64 " epoch %" PRId64, draws->seed, draws->steps,
           draws->epoch);
  if (gf_program_draws.count) write_word(out, "draws", drawn);
  fputc('}', out);
  size_t start = 0;
  for (int i = 0; i < gf_state_values.count; ++i) {
    const gf_value *value = &gf_state_values.values[i];
    if (!gf_is_kept(value)) continue;
    fprintf(out, ", \"%s/", value->role);
    gf_json_write(out, value->name);
    fprintf(out, "\": {\"dtype\": \"%s\", \"shape\": [", gf_dtype_code(value->dtype));
    for (int axis = 0; axis < value->rank; ++axis)
      fprintf(out, "%s%lld", axis ? ", " : "", (long long)value->shape[axis]);
    fprintf(out, "], \"data_offsets\": [%zu, %zu]}", start, start + value->bytes);
    start += value->bytes;
  }
  fputc('}', out);
  for (long at = ftell(out); at % 8; ++at) fputc(' ', out);
  int failed = ferror(out);
  if (fclose(out) || failed) return free(text), NULL;
  for (int i = 0; i < 8; ++i) text[i] = (char)((uint64_t)(*bytes - 8) >> 8 * i);
  return text;
}

static int write_all(int file, const void *data, size_t bytes, gf_sha256 *sum) {
  gf_sha256_add(sum, data, bytes);
  for (const char *next = data; bytes;) {
    ssize_t written = write(file, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return -1;
    next += written, bytes -= (size_t)written;
  }
  return 0;
}

/* All of the state after its header. A gf_code with a text, or -1 with errno. */
static int write_state(gf_step *step, int file, const char *header, size_t bytes) {
  char digits[GF_SHA256_DIGITS + 1];
  gf_sha256 sum;
  void *logical = gf_state_scratch(), *scratch = logical ? gf_state_scratch() : NULL;
  int code = scratch ? GF_OK : GF_ERROR_MEMORY;
  gf_sha256_start(&sum);
  if (!code) code = write_all(file, header, bytes, &sum);
  for (int i = 0; i < gf_state_values.count && !code; ++i) {
    if (!gf_is_kept(&gf_state_values.values[i])) continue;
    code = gf_state_read(step, i, logical, scratch);
    if (!code) code = write_all(file, logical, gf_state_values.values[i].bytes, &sum);
  }
  int reason = errno;
  free(logical);
  free(scratch);
  errno = reason;
  if (code) return code;
  gf_sha256_finish(&sum, digits);
  return pwrite(file, digits, GF_SHA256_DIGITS, DIGITS_AT) == GF_SHA256_DIGITS ? GF_OK : -1;
}

/* GF_OK if the file is whole: a checkpoint of this format whose checksum is right. */
static int check_seal(const char *path, const gf_tensorfile *file) {
  const char *found = gf_tensorfile_word(file, "format"), *claimed = gf_tensorfile_word(file, "sha256");
  if (!found || strcmp(found, format) != 0 || !claimed || strlen(claimed) != GF_SHA256_DIGITS ||
      file->map.bytes < DIGITS_AT + GF_SHA256_DIGITS || memcmp(file->map.data + 8, seal, SEAL) != 0)
    return gf_fail(GF_ERROR_FORMAT, "'%s': not a checkpoint of a compiled step; pass a file that gf_step_save wrote",
                   path);
  if (!gf_sha256_is_sealed(file->map.data, file->map.bytes, DIGITS_AT))
    return gf_fail(GF_ERROR_CHECKSUM, "'%s': its content does not match its checksum; use another copy", path);
  return GF_OK;
}

/* The file that this thread wrote last, or found whole: it becomes the previous one without being read again. */
static _Thread_local struct {
  dev_t device;
  ino_t inode;
  off_t bytes;
  time_t seconds;
} known;

static void remember(const char *path) {
  struct stat about;
  if (stat(path, &about) == 0) {
    known.device = about.st_dev, known.inode = about.st_ino;
    known.bytes = about.st_size, known.seconds = about.st_mtime;
  }
}

/* A damaged file must not take the place of a whole previous generation. */
static int deserves_keeping(const char *path) {
  gf_tensorfile file;
  struct stat about;
  if (stat(path, &about)) return 0;
  if (about.st_dev == known.device && about.st_ino == known.inode && about.st_size == known.bytes &&
      about.st_mtime == known.seconds)
    return 1;
  int code = gf_tensorfile_open(path, &file);
  if (!code) {
    code = check_seal(path, &file);
    gf_tensorfile_close(&file);
  }
  gf_set_error("%s", "");
  return !code;
}

/* A failure of gf_generations.h in words. */
static int explain(const char *call, const gf_replacement *place) {
  if (errno == EWOULDBLOCK && place->holder)
    return gf_fail(GF_ERROR_FILE, "%s'%s': process %ld is training with it; give each its own checkpoint", call,
                   place->path, place->holder);
  if (errno == EWOULDBLOCK)
    return gf_fail(GF_ERROR_FILE, "%s'%s': another process is writing it; give each its own checkpoint", call,
                   place->path);
  if (place->is_obstructed)
    return gf_fail(GF_ERROR_FILE, "%s'%s' is in the way of a checkpoint and cannot be removed: %s; remove it", call,
                   place->temporary, strerror(errno));
  return gf_fail(GF_ERROR_FILE,
                 "%s'%s' cannot be written: %s; an older checkpoint there is untouched; choose another place", call,
                 place->path, strerror(errno));
}

static int save(gf_step *step, gf_replacement *place, const gf_progress *progress) {
  size_t bytes;
  gf_draw_state draws;
  int known_draws = gf_step_get_draws(step, &draws);
  if (known_draws) return known_draws;
  char *header = make_header(progress, &draws, &bytes);
  if (!header) return gf_fail(GF_ERROR_MEMORY, "gf_step_save: no memory for the header; free some");
  int code = gf_replacement_open(place) ? -1 : write_state(step, place->file, header, bytes);
  if (!code) code = gf_replacement_commit(place, deserves_keeping(place->path));
  free(header);
  if (code < 0) return explain("gf_step_save: ", place);
  if (!code) remember(place->path);
  return code;
}

/* Numbers in files have points, whatever the program's language. */
typedef struct {
  locale_t plain, before;
} language;

static language speak_plain(void) {
  locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  return (language){plain, plain ? uselocale(plain) : (locale_t)0};
}

static void speak_again(language was) {
  if (!was.plain) return;
  uselocale(was.before);
  freelocale(was.plain);
}

/* Of a learning rate as a file has it: can a step take it? */
static int is_rate(double lr) { return lr >= 0 && isfinite((float)lr); }

int gf_step_hold(gf_step *step, const char *path) {
  gf_replacement place;
  gf_set_error("%s", "");
  if (!step || !path) return gf_fail(GF_ERROR_ARGUMENT, "gf_step_hold: the step or the path is NULL");
  if (gf_replacement_name(&place, path)) return gf_fail(GF_ERROR_MEMORY, "gf_step_hold: no memory for the path");
  gf_replacement *held = &gf_step_keeping(step)->held;
  gf_replacement_close(held);
  if (!gf_replacement_hold(&place)) {
    *held = place;
    return GF_OK;
  }
  int code = explain("", &place);
  gf_replacement_close(&place);
  return code;
}

int gf_step_save(gf_step *step, const char *path, const gf_progress *progress) {
  gf_replacement place;
  gf_set_error("%s", "");
  if (!step || !path || !progress)
    return gf_fail(GF_ERROR_ARGUMENT, "gf_step_save: the step, the path or the progress is NULL");
  if (progress->steps < 0 || !is_rate(progress->lr) || !memchr(progress->note, 0, sizeof progress->note))
    return gf_fail(GF_ERROR_ARGUMENT,
                   "gf_step_save: the step count or lr is negative, lr '%g' is not finite as float32, or the note has"
                   " no end", progress->lr);
  int code = gf_check_finite(step, progress->steps);
  if (code) return code;
  gf_replacement *held = &gf_step_keeping(step)->held;
  int is_held = held->path && strcmp(held->path, path) == 0;
  if (gf_replacement_name(&place, path)) return gf_fail(GF_ERROR_MEMORY, "gf_step_save: no memory for the path");
  language before = speak_plain();
  code = save(step, is_held ? held : &place, progress);
  speak_again(before);
  gf_replacement_close(&place);
  return code;
}

static int word_is(const gf_tensorfile *file, const char *key, const char *wanted) {
  const char *word = gf_tensorfile_word(file, key);
  return word && strcmp(word, wanted) == 0;
}

static const gf_tensor *find_kept(const gf_tensorfile *file, const gf_value *value) {
  for (int i = 0; i < file->count; ++i) {
    size_t role = strlen(value->role);
    const char *name = file->tensors[i].name;
    if (strncmp(name, value->role, role) == 0 && name[role] == '/' && strcmp(name + role + 1, value->name) == 0)
      return &file->tensors[i];
  }
  return NULL;
}

static int check_tensors(const char *path, const gf_tensorfile *file) {
  int kept = 0;
  for (int i = 0; i < gf_state_values.count; ++i) {
    const gf_value *value = &gf_state_values.values[i];
    if (!gf_is_kept(value)) continue;
    const gf_tensor *tensor = find_kept(file, value);
    if (!tensor)
      return gf_fail(GF_ERROR_MISMATCH,
                     "'%s': has no tensor '%s/%.100s'; compile with the same optimizer and batchnorm", path,
                     value->role, value->name);
    if (!gf_tensor_fits(tensor, value))
      return gf_fail(GF_ERROR_MISMATCH, "'%s': tensor '%s/%.100s' has another shape or type; compile the same plan",
                     path, value->role, value->name);
    if (!gf_all_finite(value, tensor->data))
      return gf_fail(GF_ERROR_FORMAT, "'%s': tensor '%s/%.100s' is not finite; use another copy", path, value->role,
                     value->name);
    ++kept;
  }
  if (kept != file->count)
    return gf_fail(GF_ERROR_MISMATCH,
                   "'%s': has %d tensors, expected %d; compile with the same optimizer and batchnorm", path,
                   file->count, kept);
  return GF_OK;
}

static const int64_t MOST_STEPS = INT64_C(1) << 53; /* nobody gets there, and counting on cannot overflow */

static int read_progress(const char *path, const gf_tensorfile *file, gf_progress *progress) {
  const char *steps = gf_tensorfile_word(file, "steps"), *lr = gf_tensorfile_word(file, "lr");
  const char *note = gf_tensorfile_word(file, "note");
  char *end = NULL, *lr_end = NULL;
  errno = 0;
  progress->steps = steps ? strtoll(steps, &end, 10) : -1;
  if (errno || progress->steps > MOST_STEPS) progress->steps = -1;
  progress->lr = lr ? strtod(lr, &lr_end) : NAN;
  if (!end || end == steps || *end || progress->steps < 0 || !lr_end || lr_end == lr || *lr_end ||
      !is_rate(progress->lr) || (note && strlen(note) >= sizeof progress->note))
    return gf_fail(GF_ERROR_FORMAT, "'%s': its step count, lr or note is damaged; use another copy", path);
  snprintf(progress->note, sizeof progress->note, "%s", note ? note : "");
  return GF_OK;
}

/* What the next step draws with; a file without draws says how many steps there were. */
static int read_draws(gf_step *step, const char *path, const gf_tensorfile *file, int64_t steps,
                      gf_draw_state *draws) {
  const char *word = gf_tensorfile_word(file, "draws");
  int code = gf_step_get_draws(step, draws), end = 0;
  draws->steps = steps;
  if (code || !word) return code;
  sscanf(word, "seed %" SCNu32 " steps %" SCNd64 " epoch %" SCNd64 "%n", &draws->seed, &draws->steps, &draws->epoch,
         &end);
  if (!end || word[end] || draws->steps < 0 || draws->epoch < 0 || draws->steps > MOST_STEPS ||
      draws->epoch > MOST_STEPS)
    return gf_fail(GF_ERROR_FORMAT, "'%s': its draws are damaged; use another copy", path);
  return GF_OK;
}

static int apply(gf_step *step, const gf_tensorfile *file) {
  void *scratch = gf_state_scratch();
  int code = scratch ? GF_OK : GF_ERROR_MEMORY;
  for (int i = 0; i < gf_state_values.count && !code; ++i)
    if (gf_is_kept(&gf_state_values.values[i]))
      code = gf_state_write(step, i, find_kept(file, &gf_state_values.values[i])->data, scratch);
  free(scratch);
  return code;
}

static int load(gf_step *step, const char *path, gf_progress *progress) {
  gf_tensorfile file;
  gf_draw_state draws;
  int code = gf_tensorfile_open(path, &file);
  if (code) return code;
  code = check_seal(path, &file);
  if (!code && !word_is(&file, "compatible", gf_program_compatible))
    code = gf_fail(GF_ERROR_MISMATCH,
                   "'%s': made by a step that trains other parameters; compile the same plan, or train anew", path);
  if (!code) code = check_tensors(path, &file);
  if (!code && !word_is(&file, "frozen", gf_program_frozen))
    code = gf_fail(GF_ERROR_MISMATCH, "'%s': made over other frozen weights; compile the model it was trained from",
                   path);
  if (!code) code = read_progress(path, &file, progress);
  if (!code) code = read_draws(step, path, &file, progress->steps, &draws);
  if (!code) code = apply(step, &file);
  if (!code) code = gf_step_set_draws(step, &draws);
  if (!code) remember(path);
  gf_tensorfile_close(&file);
  return code;
}

static int is_damage(int code) {
  return code == GF_ERROR_FILE || code == GF_ERROR_FORMAT || code == GF_ERROR_CHECKSUM;
}

int gf_step_load(gf_step *step, const char *path, gf_progress *progress) {
  gf_replacement place;
  gf_progress found = {0};
  char fault[GF_ERROR_BYTES];
  gf_set_error("%s", "");
  if (!step || !path || !progress)
    return gf_fail(GF_ERROR_ARGUMENT, "gf_step_load: the step, the path or the progress is NULL");
  if (gf_replacement_name(&place, path)) return gf_fail(GF_ERROR_MEMORY, "gf_step_load: no memory for the path");
  language before = speak_plain();
  int code = load(step, path, &found);
  if (is_damage(code)) {
    memcpy(fault, gf_error_text(), sizeof fault);
    if (load(step, place.previous, &found)) {
      gf_fail(code, "%s", fault);
    } else {
      snprintf(found.fault, sizeof found.fault, "%.400s; continuing from '%.80s'", fault, place.previous);
      code = GF_OK;
    }
  }
  speak_again(before);
  gf_replacement_close(&place);
  if (!code) *progress = found;
  return code;
}
