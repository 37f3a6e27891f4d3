#define _DEFAULT_SOURCE
#include "arrays.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const size_t widths[] = {[UINT8] = 1, [INT32] = 4, [INT64] = 8, [FLOAT32] = 4, [FLOAT64] = 8};

/* One line, whatever a file's header held: its control characters would reach the user's terminal. */
void die(int code, const char *format, ...) {
  static char text[8192]; /* room for a path or two */
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  for (char *at = text; *at; ++at)
    if ((unsigned char)*at < ' ' || *at == 0x7f) *at = '?';
  fflush(stdout);
  fprintf(stderr, "gf-train: %s\n", text);
  exit(code);
}

int exists(const char *path) {
  struct stat about;
  return lstat(path, &about) == 0 || errno != ENOENT; /* a link without a target, too */
}

const char *shape_text(const int64_t *shape, int rank) {
  static char texts[4][160];
  static int next;
  char *text = texts[next++ % 4], *at = text;
  *at = '\0';
  for (int i = 0; i < rank; ++i)
    at += snprintf(at, (size_t)(text + sizeof texts[0] - at), "%s%lld", i ? "x" : "", (long long)shape[i]);
  return text;
}

#define LOST "was truncated or became unreadable while in use; what was saved last is as it was; restore it and start again"
static struct {
  const char *path;
  const unsigned char *data;
  size_t bytes;
  int file;
} maps[4]; /* samples and targets, to train and to evaluate */
static int map_count;

static void say(const char *text) {
  if (write(STDERR_FILENO, text, strlen(text)) < 0) _exit(1);
}

/* Only what a signal handler may call. */
static void lose_file(int number, siginfo_t *info, void *context) {
  const unsigned char *at = info->si_addr;
  const char *path = NULL;
  (void)context;
  if (info->si_code != BUS_ADRERR) { /* no matter of files */
    signal(number, SIG_DFL);
    raise(number);
    return;
  }
  for (int i = 0; i < map_count; ++i)
    if (at >= maps[i].data && at < maps[i].data + maps[i].bytes) path = maps[i].path;
  say(path ? "gf-train: '" : "gf-train: a file of this folder, or a checkpoint");
  if (path) say(path), say("':");
  say(" " LOST "\n");
  _exit(1);
}

void check_files(void) {
  struct stat about;
  for (int i = 0; i < map_count; ++i)
    if (fstat(maps[i].file, &about) || (uint64_t)about.st_size < maps[i].bytes) die(1, "'%s': " LOST, maps[i].path);
}

static void watch(const char *path, const unsigned char *data, size_t bytes, int file) {
  struct sigaction action = {.sa_sigaction = lose_file, .sa_flags = SA_SIGINFO};
  maps[map_count].path = path, maps[map_count].data = data, maps[map_count].bytes = bytes;
  maps[map_count++].file = file;
  sigaction(SIGBUS, &action, NULL);
}

static const unsigned char *map(const char *path, size_t *bytes) {
  struct stat about;
  int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a FIFO would wait for a writer */
  if (file < 0 || fstat(file, &about)) die(1, "'%s': cannot be read: %s; check the path", path, strerror(errno));
  if (!S_ISREG(about.st_mode)) die(1, "'%s': is no file; give an .npy or an idx file", path);
  if (about.st_size == 0) die(1, "'%s': is empty; use another copy", path);
  void *data = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, file, 0);
  if (data == MAP_FAILED) die(1, "'%s': cannot be read: %s", path, strerror(errno));
  *bytes = (size_t)about.st_size;
  watch(path, data, *bytes, file);
  return data;
}

/* The values must fill the rest of the file. */
static void check_size(const array *values, size_t offset, size_t bytes) {
  size_t wanted = widths[values->type];
  for (int i = 0; i < values->rank; ++i)
    if (values->shape[i] < 0 || __builtin_mul_overflow(wanted, (size_t)values->shape[i], &wanted))
      die(1, "'%s': its shape is damaged; use another copy", values->path);
  if (wanted != bytes - offset)
    die(1, "'%s': holds %zu bytes of values, its shape %s says %zu; it is truncated or damaged, use another copy",
        values->path, bytes - offset, shape_text(values->shape, values->rank), wanted);
  if (values->rank == 0 || values->shape[0] == 0)
    die(1, "'%s': holds no samples; its first axis must count them", values->path);
}

static array read_idx(const char *path, const unsigned char *data, size_t bytes) {
  array found = {.path = path, .type = UINT8, .rank = data[3]};
  size_t offset = 4 + 4 * (size_t)found.rank;
  if (data[2] != 8) die(1, "'%s': an idx file of another type than bytes; convert it to .npy", path);
  if (found.rank > MAX_AXES || bytes < offset) die(1, "'%s': its header is damaged; use another copy", path);
  for (int i = 0; i < found.rank; ++i) {
    const unsigned char *at = data + 4 + 4 * i;
    found.shape[i] = (int64_t)at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3];
  }
  found.data = data + offset;
  check_size(&found, offset, bytes);
  return found;
}

/* The value after 'key': in the header, which is a Python dictionary. */
static const char *value_of(const char *header, const char *key) {
  const char *found = strstr(header, key);
  if (!found) return "";
  found += strlen(key);
  while (*found == ' ' || *found == ':' || *found == '\'') ++found;
  return found;
}

static array read_npy(const char *path, const unsigned char *data, size_t bytes) {
  static const struct {
    const char *code;
    number_type type;
  } codes[] = {{"|u1", UINT8}, {"<i4", INT32}, {"<i8", INT64}, {"<f4", FLOAT32}, {"<f8", FLOAT64}};
  array found = {.path = path};
  size_t start = data[6] == 1 ? 10 : 12;
  size_t length = (size_t)data[8] | (size_t)data[9] << 8;
  if (start == 12 && bytes >= 12) length |= (size_t)data[10] << 16 | (size_t)data[11] << 24;
  if (bytes < start || length > bytes - start) die(1, "'%s': its header is cut off; use another copy", path);
  char *header = strndup((const char *)data + start, length);
  if (!header) die(1, "no memory for a header");
  const char *code = value_of(header, "'descr'"), *shape = value_of(header, "'shape'");
  int type = 0;
  while (type < 5 && strncmp(code, codes[type].code, 3) != 0) ++type;
  if (type == 5)
    die(1, "'%s': holds '%.*s' values; save it as uint8, int32, int64, float32 or float64, little-endian", path,
        (int)strcspn(code, "'"), code);
  if (strncmp(value_of(header, "'fortran_order'"), "False", 5) != 0)
    die(1, "'%s': lies in Fortran order; save numpy.ascontiguousarray of it", path);
  found.type = codes[type].type;
  for (shape += *shape == '('; *shape >= '0' && *shape <= '9';) {
    char *end;
    if (found.rank == MAX_AXES) die(1, "'%s': has more than %d axes", path, MAX_AXES);
    found.shape[found.rank++] = strtoll(shape, &end, 10);
    for (shape = end; *shape == ',' || *shape == ' ';) ++shape;
  }
  if (*shape != ')') die(1, "'%s': its header is damaged; use another copy", path);
  free(header);
  found.data = data + start + length;
  check_size(&found, start + length, bytes);
  return found;
}

array open_array(const char *path) {
  size_t bytes;
  const unsigned char *data = map(path, &bytes);
  if (bytes >= 2 && data[0] == 0x1f && data[1] == 0x8b)
    die(1, "'%s': is compressed; unpack it with: gunzip -k '%s'", path, path);
  if (bytes >= 10 && memcmp(data, "\x93NUMPY", 6) == 0) return read_npy(path, data, bytes);
  if (bytes >= 4 && data[0] == 0 && data[1] == 0) return read_idx(path, data, bytes);
  die(1, "'%s': neither an .npy nor an idx file; write one with numpy.save", path);
}

double number_at(const array *values, size_t index) {
  union {
    int32_t i;
    int64_t l;
    float f;
    double d;
  } value;
  const unsigned char *at = values->data + index * widths[values->type];
  if (values->type == UINT8) return *at;
  memcpy(&value, at, widths[values->type]);
  switch (values->type) {
    case INT32: return value.i;
    case INT64: return (double)value.l;
    case FLOAT32: return value.f;
    default: return value.d;
  }
}

int is_integer(const array *values) { return values->type <= INT64; }

size_t sample_size(const array *values) {
  size_t size = 1;
  for (int i = 1; i < values->rank; ++i) size *= (size_t)values->shape[i];
  return size;
}
