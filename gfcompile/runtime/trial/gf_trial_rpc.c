/* A trial behind TVM's RPC: what a server loads from this library and calls.
 *
 * The function follows TVM's C calling convention (tvm/ffi/c_api.h of apache-tvm-ffi 0.1), of which the few structures
 * below are all that is needed: no header and no library of TVM takes part in the build. It takes (turns,
 * block_seconds, timeout) and returns a text of two lines: what the board says of itself, as JSON, and what
 * gf_trial_run wrote.
 *
 * The trial runs in a child of its own. A server of TVM 0.27 stops serving when one of its sessions crashes, and most
 * of what goes wrong in a trial is a crash or an endless loop. */
#define _GNU_SOURCE /* strsignal, pipe2 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gf_trial.h"

#ifndef GF_SYSTEM_FOLDER
#define GF_SYSTEM_FOLDER "/sys"
#endif

enum { FFI_INT = 1, FFI_FLOAT = 3, FFI_STR = 65 }; /* TVMFFITypeIndex */
enum { ANSWER_BYTES = 1 << 16, BOARD_BYTES = 512, PATH_BYTES = 512, WORD_BYTES = 64, MOST_CORES = 256 };

typedef struct { /* TVMFFIAny */
  int32_t type_index;
  uint32_t zero;
  union {
    int64_t integer;
    double real;
    void *object;
    uint64_t bits;
  } value;
} ffi_any;

typedef struct { /* TVMFFIObject, TVMFFIByteArray, and the bytes */
  uint64_t references; /* strong in the low half, weak in the high one */
  int32_t type_index;
  uint32_t zero;
  union {
    void (*function)(void *, int);
    int64_t align;
  } deleter;
  const char *data;
  size_t size;
  char text[];
} ffi_string;

static void delete_string(void *string, int how) {
  if (how & 2) free(string); /* the last weak reference: the memory goes */
}

static ffi_string *make_string(size_t bytes) {
  ffi_string *string = calloc(1, sizeof *string + bytes);
  if (!string) return NULL;
  string->references = (uint64_t)1 << 32 | 1;
  string->type_index = FFI_STR;
  string->deleter.function = delete_string;
  string->data = string->text;
  return string;
}

static double seconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The first word of a file, of letters, digits, _ and - only: it may go between quotes. Empty if there is none. */
static const char *read_word(const char *path, char word[WORD_BYTES]) {
  word[0] = 0;
  FILE *file = fopen(path, "r");
  if (!file) return word;
  if (fscanf(file, "%63[A-Za-z0-9_-]", word) != 1) word[0] = 0;
  fclose(file);
  return word;
}

/* The program that really runs is an emulator: it is called qemu-..., or is of another machine than this code. An
 * emulator of programs (qemu-user) answers /proc/self/exe with the program that it emulates, but not this name. */
static bool is_emulated(void) {
  static const char path[] = "/proc/thread-self/exe";
  char name[PATH_BYTES] = "";
  if (readlink(path, name, sizeof name - 1) > 0) {
    const char *slash = strrchr(name, '/');
    if (!strncmp(slash ? slash + 1 : name, "qemu-", 5)) return true;
  }
  ElfW(Ehdr) header;
  FILE *file = fopen(path, "rb");
  if (!file) return false;
  size_t count = fread(&header, sizeof header, 1, file);
  fclose(file);
#if defined(__aarch64__)
  return count == 1 && header.e_machine != EM_AARCH64;
#elif defined(__x86_64__)
  return count == 1 && header.e_machine != EM_X86_64;
#else
  (void)count;
  return false;
#endif
}

/* The first word of a file about a core's clock. */
static const char *read_clock(int core, const char *name, char word[WORD_BYTES]) {
  char path[PATH_BYTES];
  snprintf(path, sizeof path, GF_SYSTEM_FOLDER "/devices/system/cpu/cpu%d/cpufreq/%s", core, name);
  return read_word(path, word);
}

/* What may explain odd times: the governor and the clock of the fastest core (boards mix kinds), and the heat. */
static void describe_board(char *json, size_t bytes) {
  char word[WORD_BYTES];
  int fastest = -1, used;
  long most = 0;
  for (int core = 0; core < MOST_CORES; ++core) {
    long khz = strtol(read_clock(core, "cpuinfo_max_freq", word), NULL, 10);
    if (khz > most) most = khz, fastest = core;
  }
  used = snprintf(json, bytes, "{\"emulated\": %s", is_emulated() ? "true" : "false");
  if (read_clock(fastest, "scaling_governor", word)[0])
    used += snprintf(json + used, bytes - (size_t)used, ", \"governor\": \"%s\"", word);
  if (read_clock(fastest, "scaling_cur_freq", word)[0])
    used += snprintf(json + used, bytes - (size_t)used, ", \"khz\": %ld", strtol(word, NULL, 10));
  if (read_word(GF_SYSTEM_FOLDER "/class/thermal/thermal_zone0/temp", word)[0])
    used += snprintf(json + used, bytes - (size_t)used, ", \"millicelsius\": %ld", strtol(word, NULL, 10));
  snprintf(json + used, bytes - (size_t)used, "}");
}

static void run_as_child(int out, pid_t parent, int turns, double block_seconds) {
  static char json[ANSWER_BYTES];
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* a session that is ended takes its trial along */
  if (getppid() != parent) _exit(1);
  /* The connection must close with the session, whatever happens here. */
  for (int file = 3; file < 1024; ++file)
    if (file != out) close(file);
  struct rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none); /* candidates may crash, and nobody reads the core */
  if (gf_trial_run(turns, block_seconds, json, sizeof json))
    snprintf(json, sizeof json, "{\"failure\": \"more than %d bytes; ask for fewer turns\"}", ANSWER_BYTES);
  for (size_t done = 0, size = strlen(json); done < size;) {
    ssize_t count = write(out, json + done, size - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) _exit(1);
    done += (size_t)count;
  }
  _exit(0);
}

/* Until the child closes its end or `deadline`; the bytes read, -1 if time is up. */
static long read_until(int in, double deadline, char *json, size_t bytes) {
  size_t used = 0;
  while (used < bytes) {
    double left = deadline - seconds_now();
    if (!(left > 0)) return -1; /* a timeout that is no number is over too */
    struct pollfd wait = {.fd = in, .events = POLLIN};
    if (poll(&wait, 1, left > 1 ? 1000 : (int)(left * 1000) + 1) <= 0) continue;
    ssize_t count = read(in, json + used, bytes - used);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    used += (size_t)count;
  }
  return (long)used;
}

static void run_in_child(int turns, double block_seconds, double timeout, char *json, size_t bytes) {
  int ends[2], status = 0;
  if (pipe2(ends, O_CLOEXEC)) {
    snprintf(json, bytes, "{\"failure\": \"the board gives no pipe: %s\"}", strerror(errno));
    return;
  }
  pid_t parent = getpid(), child = fork();
  if (child == 0) run_as_child(ends[1], parent, turns, block_seconds);
  close(ends[1]);
  if (child < 0) {
    snprintf(json, bytes, "{\"failure\": \"the board starts no process: %s\"}", strerror(errno));
    close(ends[0]);
    return;
  }
  long used = read_until(ends[0], seconds_now() + timeout, json, bytes - 1);
  close(ends[0]);
  if (used < 0) kill(child, SIGKILL);
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (used < 0)
    snprintf(json, bytes, "{\"failure\": \"the trial hung: it was ended after %.3g s\"}", timeout);
  else if (WIFSIGNALED(status))
    snprintf(json, bytes, "{\"failure\": \"the trial crashed: %s\"}", strsignal(WTERMSIG(status)));
  else if (WEXITSTATUS(status) || !used)
    snprintf(json, bytes, "{\"failure\": \"the trial ended with exit code %d and no answer\"}", WEXITSTATUS(status));
  else
    json[used] = 0;
}

__attribute__((visibility("default"))) /* the only name of the library that TVM asks for */
int __tvm_ffi_gf_trial(void *self, const ffi_any *args, int32_t count, ffi_any *result) {
  (void)self;
  static char trial[ANSWER_BYTES];
  char board[BOARD_BYTES];
  if (count == 3 && args[0].type_index == FFI_INT && args[1].type_index == FFI_FLOAT && args[2].type_index == FFI_FLOAT)
    run_in_child((int)args[0].value.integer, args[1].value.real, args[2].value.real, trial, sizeof trial);
  else
    snprintf(trial, sizeof trial, "{\"failure\": \"a trial takes an integer and two floats\"}");
  describe_board(board, sizeof board); /* after the trial: the clock and the heat it was left at */
  size_t bytes = strlen(trial) + sizeof board + WORD_BYTES;
  ffi_string *answer = make_string(bytes);
  result->zero = 0;
  result->type_index = answer ? FFI_STR : 0;
  result->value.bits = 0;
  if (!answer) return 0; /* None, which the caller takes for a failure */
  answer->size = (size_t)snprintf(answer->text, bytes, "%s\n%s", board, trial);
  result->value.object = answer;
  return 0;
}
