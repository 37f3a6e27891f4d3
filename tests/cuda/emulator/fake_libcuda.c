/* A stand-in for the CUDA driver library, for machines without one: kernels run in the emulator's library.
 *
 * It is strict where a real driver may be: whatever is queued on a stream waits until somebody waits for the stream, a
 * call without a current context fails, nothing works in a forked child, an image must be one that the device takes and
 * must hold the kernels that are asked for, and device addresses are no addresses of this process.
 *
 * GF_FAKE_CUDA_KERNELS       the emulator's library, made from the CUDA source of the images
 * GF_FAKE_CUDA_CAPABILITY    53 unless set; GF_FAKE_CUDA_NAME, GF_FAKE_CUDA_DEVICES and GF_FAKE_CUDA_VERSION likewise
 * GF_FAKE_CUDA_FAIL          NAME=CODE, or NAME=CODE@N: this function fails, or its Nth call does
 * GF_FAKE_CUDA_LOG           a file, to which every call is written, and at the end what is still allocated */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <unistd.h>

#include "images.h"

typedef uint64_t address_t;

static struct { /* the emulator's library */
  uint64_t (*allocate)(size_t);
  int (*release)(uint64_t);
  void *(*host)(uint64_t, size_t);
  size_t (*live_bytes)(void);
  int (*kernel)(const char *);
  size_t (*argument_size)(int, int);
  int (*check_launch)(int, const unsigned *);
  int (*launch)(int, const unsigned *, void **);
  const char *(*error)(void);
} emulator;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t owner;
static int contexts, modules, streams, failed_for_good;
static __thread int has_context;
static long allocations;

static const char *setting(const char *name, const char *otherwise) {
  const char *value = getenv(name);
  return value && value[0] ? value : otherwise;
}
static int capability(void) { return atoi(setting("GF_FAKE_CUDA_CAPABILITY", "53")); }
static int driver_version(void) { return atoi(setting("GF_FAKE_CUDA_VERSION", "10020")); }

__attribute__((format(printf, 1, 2))) static void note(const char *format, ...) {
  const char *path = getenv("GF_FAKE_CUDA_LOG");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (!file) return;
  va_list rest;
  va_start(rest, format);
  vfprintf(file, format, rest);
  va_end(rest);
  fputc('\n', file);
  fclose(file);
}

__attribute__((destructor)) static void note_end(void) {
  if (owner != getpid()) return;
  note("end: %ld allocations, %d modules, %d streams, %d contexts", allocations, modules, streams, contexts);
}

static int injected(const char *function) {
  static int calls;
  const char *fail = getenv("GF_FAKE_CUDA_FAIL");
  size_t length = strlen(function);
  if (!fail || strncmp(fail, function, length) || fail[length] != '=') return SUCCESS;
  const char *turn = strchr(fail, '@');
  return !turn || ++calls == atoi(turn + 1) ? atoi(fail + length + 1) : SUCCESS;
}

/* What every call asks first. */
static int check(const char *function, int needs_context) {
  int code = injected(function);
  if (code) return code;
  if (owner != getpid()) return NOT_INITIALIZED;
  if (needs_context && !has_context) return INVALID_CONTEXT;
  return needs_context ? failed_for_good : SUCCESS;
}
#define CHECK(needs_context)                         \
  do {                                               \
    int code_ = check(__func__, needs_context);      \
    if (code_) return code_;                         \
  } while (0)

/* Work that waits for cuStreamSynchronize, in order. */
enum kind { LAUNCH, COPY, UPLOAD, DOWNLOAD, FILL };
typedef struct {
  enum kind kind;
  int kernel;
  unsigned sizes[6];
  uint64_t values[64];
  address_t to, from;
  void *host; /* the caller's, or a copy of what was there when it called */
  size_t bytes;
  unsigned char octet;
} work_t;
static work_t *queue;
static size_t queued, room;

static work_t *enqueue(enum kind kind) {
  if (queued == room) queue = realloc(queue, (room = room ? 2 * room : 64) * sizeof *queue);
  if (!queue) abort();
  memset(&queue[queued], 0, sizeof *queue);
  queue[queued].kind = kind;
  return &queue[queued++];
}

static int perform(work_t *work) {
  void *arguments[64];
  switch (work->kind) {
    case LAUNCH:
      for (int i = 0; i < 64; ++i) arguments[i] = &work->values[i];
      if (!emulator.launch(work->kernel, work->sizes, arguments)) return SUCCESS;
      fprintf(stderr, "stand-in libcuda: %s\n", emulator.error());
      return ILLEGAL_ADDRESS;
    case COPY:
      memcpy(emulator.host(work->to, work->bytes), emulator.host(work->from, work->bytes), work->bytes);
      return SUCCESS;
    case UPLOAD:
      memcpy(emulator.host(work->to, work->bytes), work->host, work->bytes);
      free(work->host);
      return SUCCESS;
    case DOWNLOAD: memcpy(work->host, emulator.host(work->from, work->bytes), work->bytes); return SUCCESS;
    default: memset(emulator.host(work->to, work->bytes), work->octet, work->bytes); return SUCCESS;
  }
}

static int drain(void) {
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < queued && !failed_for_good; ++i) failed_for_good = perform(&queue[i]);
  queued = 0;
  pthread_mutex_unlock(&lock);
  return failed_for_good;
}

static int find_emulator(void) {
  const char *path = getenv("GF_FAKE_CUDA_KERNELS");
  void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  if (!library) {
    fprintf(stderr, "stand-in libcuda: %s\n", path ? dlerror() : "GF_FAKE_CUDA_KERNELS is not set");
    return -1;
  }
#define FIND(member, name) *(void **)&emulator.member = dlsym(library, "gf_emulator_" name);
  FIND(allocate, "allocate")
  FIND(release, "free")
  FIND(host, "host")
  FIND(live_bytes, "live_bytes")
  FIND(kernel, "kernel")
  FIND(argument_size, "argument_size")
  FIND(check_launch, "check_launch")
  FIND(launch, "launch")
  FIND(error, "error")
  return 0;
}

int cuInit(unsigned flags) {
  int code = injected("cuInit");
  if (code) return code;
  if (flags) return INVALID_VALUE;
  if (owner) return owner == getpid() ? SUCCESS : NOT_INITIALIZED;
  if (atoi(setting("GF_FAKE_CUDA_DEVICES", "1")) == 0) return NO_DEVICE;
  if (find_emulator()) return NOT_INITIALIZED;
  owner = getpid();
  note("cuInit");
  return SUCCESS;
}

int cuDriverGetVersion(int *version) {
  int code = injected(__func__);
  *version = driver_version();
  return code;
}

int cuGetErrorName(int code, const char **name) {
  static const struct {
    int code;
    const char *name;
  } known[] = {{SUCCESS, "CUDA_SUCCESS"}, {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
               {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"}, {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
               {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"}, {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
               {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"}, {NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
               {INVALID_PTX, "CUDA_ERROR_INVALID_PTX"}, {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
               {UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
               {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"}};
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
    if (known[i].code == code) return *name = known[i].name, SUCCESS;
  return INVALID_VALUE;
}

int cuGetErrorString(int code, const char **text) {
  static const char *const some[] = {"no error", "invalid argument", "out of memory", "initialization error"};
  *text = code >= 0 && code < 4 ? some[code] : "see the name";
  return SUCCESS;
}

int cuDeviceGetCount(int *count) {
  CHECK(0);
  *count = atoi(setting("GF_FAKE_CUDA_DEVICES", "1"));
  return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal) {
  CHECK(0);
  *device = ordinal;
  return ordinal < 0 || ordinal >= atoi(setting("GF_FAKE_CUDA_DEVICES", "1")) ? INVALID_DEVICE : SUCCESS;
}

int cuDeviceGetName(char *name, int bytes, int device) {
  CHECK(0);
  (void)device;
  snprintf(name, (size_t)bytes, "%s", setting("GF_FAKE_CUDA_NAME", "stand-in"));
  return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  CHECK(0);
  (void)device;
  enum { MAJOR = 75, MINOR = 76 };
  if (attribute != MAJOR && attribute != MINOR) return INVALID_VALUE;
  *value = attribute == MAJOR ? capability() / 10 : capability() % 10;
  return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
  CHECK(0);
  ++contexts;
  *context = (char *)&contexts + device;
  note("cuDevicePrimaryCtxRetain");
  return SUCCESS;
}

int cuDevicePrimaryCtxRelease(int device) {
  CHECK(0);
  (void)device;
  --contexts;
  note("cuDevicePrimaryCtxRelease");
  return SUCCESS;
}

int cuCtxSetCurrent(void *context) {
  CHECK(0);
  has_context = context != NULL && contexts > 0;
  return context && contexts <= 0 ? INVALID_CONTEXT : SUCCESS;
}

int cuModuleLoadData(void **module, const void *image) {
  CHECK(1);
  int code = check_image(image, capability(), driver_version());
  note("cuModuleLoadData %s: %d", is_cubin(image) ? "cubin" : "ptx", code);
  if (code) return code;
  ++modules;
  *(const void **)module = image;
  return SUCCESS;
}

int cuModuleUnload(void *module) {
  CHECK(1);
  (void)module;
  --modules;
  return SUCCESS;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
  CHECK(1);
  if (!image_has_function(module, name)) return NOT_FOUND;
  int kernel = emulator.kernel(name);
  if (kernel < 0) fprintf(stderr, "stand-in libcuda: the emulator's library has no kernel '%s'\n", name);
  *function = (void *)(intptr_t)(kernel + 1);
  return kernel < 0 ? NOT_FOUND : SUCCESS;
}

int cuStreamCreate(void **stream, unsigned flags) {
  CHECK(1);
  (void)flags;
  ++streams;
  *stream = &streams;
  return SUCCESS;
}

int cuStreamDestroy_v2(void *stream) {
  CHECK(1);
  --streams;
  return stream == &streams ? SUCCESS : INVALID_HANDLE;
}

int cuStreamSynchronize(void *stream) {
  CHECK(1);
  note("cuStreamSynchronize");
  return stream == &streams ? drain() : INVALID_HANDLE;
}

int cuMemGetInfo_v2(size_t *available, size_t *total) {
  CHECK(1);
  *total = (size_t)1 << 30;
  *available = *total - emulator.live_bytes();
  return SUCCESS;
}

int cuMemAlloc_v2(address_t *address, size_t bytes) {
  CHECK(1);
  if (!bytes) return INVALID_VALUE;
  *address = emulator.allocate(bytes);
  if (!*address) return OUT_OF_MEMORY;
  ++allocations;
  note("cuMemAlloc_v2 %zu", bytes);
  return SUCCESS;
}

int cuMemFree_v2(address_t address) {
  CHECK(1);
  drain();
  if (emulator.release(address)) return INVALID_VALUE;
  --allocations;
  note("cuMemFree_v2");
  return SUCCESS;
}

int cuMemcpyHtoDAsync_v2(address_t to, const void *from, size_t bytes, void *stream) {
  CHECK(1);
  if (!emulator.host(to, bytes) || stream != &streams) return INVALID_VALUE;
  work_t *work = enqueue(UPLOAD);
  work->to = to;
  work->bytes = bytes;
  work->host = malloc(bytes);
  memcpy(work->host, from, bytes);
  note("upload %zu", bytes);
  return SUCCESS;
}

int cuMemcpyDtoHAsync_v2(void *to, address_t from, size_t bytes, void *stream) {
  CHECK(1);
  if (!emulator.host(from, bytes) || stream != &streams) return INVALID_VALUE;
  work_t *work = enqueue(DOWNLOAD);
  work->from = from;
  work->bytes = bytes;
  work->host = to;
  note("download %zu", bytes);
  return SUCCESS;
}

int cuMemcpyDtoDAsync_v2(address_t to, address_t from, size_t bytes, void *stream) {
  CHECK(1);
  if (!emulator.host(to, bytes) || !emulator.host(from, bytes) || stream != &streams) return INVALID_VALUE;
  work_t *work = enqueue(COPY);
  work->to = to;
  work->from = from;
  work->bytes = bytes;
  note("copy %zu", bytes);
  return SUCCESS;
}

int cuMemsetD8Async(address_t to, unsigned char octet, size_t bytes, void *stream) {
  CHECK(1);
  if (!emulator.host(to, bytes) || stream != &streams) return INVALID_VALUE;
  work_t *work = enqueue(FILL);
  work->to = to;
  work->bytes = bytes;
  work->octet = octet;
  note("fill %zu", bytes);
  return SUCCESS;
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared_bytes, void *stream, void **arguments, void **extra) {
  CHECK(1);
  if (!function || stream != &streams || shared_bytes || extra) return INVALID_VALUE;
  unsigned sizes[] = {gx, gy, gz, bx, by, bz};
  int kernel = (int)(intptr_t)function - 1;
  if (emulator.check_launch(kernel, sizes)) {
    fprintf(stderr, "stand-in libcuda: %s\n", emulator.error());
    return INVALID_VALUE;
  }
  work_t *work = enqueue(LAUNCH);
  work->kernel = kernel;
  memcpy(work->sizes, sizes, sizeof sizes);
  size_t size;
  for (int i = 0; (size = emulator.argument_size(work->kernel, i)) != 0; ++i)
    memcpy(&work->values[i], arguments[i], size);
  note("launch %d grid %u %u %u block %u %u %u", work->kernel, gx, gy, gz, bx, by, bz);
  return SUCCESS;
}
