/* The device is a GPU, reached through the CUDA driver: libcuda.so.1, which comes with the machine and not with us.
 *
 * One context (the device's primary one), one stream, one module. Everything is queued on the stream; the driver's
 * failures are told by the call that meets them, which for a kernel is often gf_device_finish. */
#define _DEFAULT_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "gf_cuda.h"
#include "gf_device.h"
#include "gf_memory.h"
#include "gf_step.h"

const int gf_device_is_host = 0;

/* The driver's interface, as far as it is used. Names with _v2 are what CUDA's headers make of the plain ones. */
typedef uint64_t address_t;
#define DRIVER(X)                                                                                        \
  X(cuInit, (unsigned flags))                                                                            \
  X(cuDriverGetVersion, (int *version))                                                                  \
  X(cuGetErrorName, (int code, const char **name))                                                       \
  X(cuGetErrorString, (int code, const char **text))                                                     \
  X(cuDeviceGetCount, (int *count))                                                                      \
  X(cuDeviceGet, (int *device, int ordinal))                                                             \
  X(cuDeviceGetName, (char *name, int bytes, int device))                                                \
  X(cuDeviceGetAttribute, (int *value, int attribute, int device))                                       \
  X(cuDevicePrimaryCtxRetain, (void **context, int device))                                              \
  X(cuDevicePrimaryCtxRelease, (int device))                                                             \
  X(cuCtxSetCurrent, (void *context))                                                                    \
  X(cuModuleLoadData, (void **module, const void *image))                                                \
  X(cuModuleUnload, (void *module))                                                                      \
  X(cuModuleGetFunction, (void **function, void *module, const char *name))                              \
  X(cuStreamCreate, (void **stream, unsigned flags))                                                     \
  X(cuStreamDestroy_v2, (void *stream))                                                                  \
  X(cuStreamSynchronize, (void *stream))                                                                 \
  X(cuMemGetInfo_v2, (size_t * available, size_t *total))                                                \
  X(cuMemAlloc_v2, (address_t * address, size_t bytes))                                                  \
  X(cuMemFree_v2, (address_t address))                                                                   \
  X(cuMemcpyHtoDAsync_v2, (address_t to, const void *from, size_t bytes, void *stream))                  \
  X(cuMemcpyDtoHAsync_v2, (void *to, address_t from, size_t bytes, void *stream))                        \
  X(cuMemcpyDtoDAsync_v2, (address_t to, address_t from, size_t bytes, void *stream))                    \
  X(cuMemsetD8Async, (address_t to, unsigned char octet, size_t bytes, void *stream))                    \
  X(cuLaunchKernel, (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
                     unsigned shared_bytes, void *stream, void **arguments, void **extra))
#define MEMBER(name, parameters) int(*name) parameters;
static struct {
  DRIVER(MEMBER)
} cu;

enum { CUDA_SUCCESS = 0, OUT_OF_MEMORY = 2, NO_DEVICE = 100 };
enum { CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76, NON_BLOCKING = 1 };

static struct {
  pid_t process; /* that started the driver; 0 when nobody has */
  int is_open;
  int device, capability, version;
  char name[48];
  void *context, *stream, *module;
  void **functions;
  int last_launched; /* since the last finish; -1 for none */
  int is_blocking;   /* GF_CUDA_BLOCKING: wait after every launch, so that a failure names its kernel */
} gpu;

static const char *name_error(int code) {
  const char *name = NULL;
  static char number[32];
  if (!cu.cuGetErrorName(code, &name) && name) return name;
  snprintf(number, sizeof number, "CUDA error %d", code);
  return number;
}

/* GF_OK if the driver has succeeded; else a text. */
static int check(int code, const char *what) {
  const char *meaning = NULL;
  if (code == CUDA_SUCCESS) return GF_OK;
  if (cu.cuGetErrorString(code, &meaning) || !meaning) meaning = "no explanation";
  return gf_fail(GF_ERROR_DEVICE, "%s: %s (%s)", what, name_error(code), meaning);
}

static int load_driver(void) {
  static void *library; /* never closed: the driver does not like it */
  if (!library) library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    return gf_fail(GF_ERROR_DEVICE, "the CUDA driver cannot be loaded (%.200s); install NVIDIA's driver, on a Jetson it"
                   " comes with JetPack", dlerror());
  }
#define FIND(name, parameters)                                                                                  \
  if (!(*(void **)&cu.name = dlsym(library, #name))) {                                                          \
    return gf_fail(GF_ERROR_DEVICE, "the CUDA driver is too old: it has no %s; update it, CUDA 10 (JetPack 4) or" \
                   " later will do", #name);                                                                    \
  }
  DRIVER(FIND)
#undef FIND
  return 0;
}

static int find_device(void) {
  int count = 0, major = 0, minor = 0, code = cu.cuInit(0);
  cu.cuDriverGetVersion(&gpu.version);
  if (code == CUDA_SUCCESS) code = cu.cuDeviceGetCount(&count);
  if (code == NO_DEVICE || (code == CUDA_SUCCESS && count == 0)) {
    return gf_fail(GF_ERROR_DEVICE, "the CUDA driver finds no device; see whether CUDA_VISIBLE_DEVICES hides it, or run"
                   " this on a machine with an NVIDIA GPU");
  }
  if (check(code, "the CUDA driver does not start") ||
      check(cu.cuDeviceGet(&gpu.device, 0), "the first CUDA device cannot be used") ||
      check(cu.cuDeviceGetAttribute(&major, CAPABILITY_MAJOR, gpu.device), "the device hides what it is") ||
      check(cu.cuDeviceGetAttribute(&minor, CAPABILITY_MINOR, gpu.device), "the device hides what it is"))
    return GF_ERROR_DEVICE;
  if (cu.cuDeviceGetName(gpu.name, sizeof gpu.name, gpu.device)) snprintf(gpu.name, sizeof gpu.name, "unknown");
  gpu.capability = 10 * major + minor;
  return GF_OK;
}

/* The target that is compiled for this architecture. */
static const char *name_target(int arch) {
  static char other[32];
  switch (arch) {
    case 53: return "jetson-nano";
    case 62: return "jetson-tx2";
    case 72: return "jetson-xavier";
    case 87: return "jetson-orin";
  }
  snprintf(other, sizeof other, "cuda --arch sm_%d", arch);
  return other;
}

static int is_tegra(int arch) { return arch == 32 || arch == 53 || arch == 62 || arch == 72 || arch == 87; }

/* PTX runs on its own architecture and all later ones. Machine code runs on its own, and on cards (not on Tegras) of
 * the same major version and a later minor one. */
static int fits(const gf_cuda_image *image) {
  int arch = image->arch, here = gpu.capability;
  if (image->is_ptx) return arch <= here;
  return arch == here || (arch / 10 == here / 10 && arch < here && !is_tegra(arch) && !is_tegra(here));
}

/* Machine code before PTX, which the driver has to translate first; then the newest. */
static int is_better(const gf_cuda_image *one, const gf_cuda_image *other) {
  if (one->is_ptx != other->is_ptx) return !one->is_ptx;
  return one->arch > other->arch;
}

static const gf_cuda_image *next_image(const gf_cuda_image *tried) {
  const gf_cuda_image *best = NULL;
  for (const gf_cuda_image *image = gf_cuda_images; image < gf_cuda_images + gf_cuda_image_count; ++image)
    if (fits(image) && (!tried || is_better(tried, image)) && (!best || is_better(image, best))) best = image;
  return best;
}

static int refuse_device(void) {
  int arch = gf_cuda_images[0].arch;
  char compiled_for[48];
  snprintf(compiled_for, sizeof compiled_for, "%s", name_target(arch));
  return gf_fail(GF_ERROR_DEVICE, "this step was compiled for sm_%d (%s), the device '%s' is sm_%d; compile with"
                 " --target %s", arch, compiled_for, gpu.name, gpu.capability, name_target(gpu.capability));
}

static int load_module(void) {
  const gf_cuda_image *image = next_image(NULL);
  int code = CUDA_SUCCESS;
  if (!image) return refuse_device();
  for (; image; image = next_image(image)) { /* an older driver may take the PTX where it does not know the cubin */
    code = cu.cuModuleLoadData(&gpu.module, image->data);
    if (code == CUDA_SUCCESS) return GF_OK;
    if (code == OUT_OF_MEMORY) {
      return gf_fail(GF_ERROR_MEMORY, "the device '%s' has no memory for the step's kernels; free some", gpu.name);
    }
  }
  gpu.module = NULL;
  return gf_fail(GF_ERROR_DEVICE, "the driver (CUDA %d.%d) of device '%s' (sm_%d) does not take this step's kernels:"
                 " %s; update it, or compile with --target %s", gpu.version / 1000, gpu.version % 1000 / 10, gpu.name,
                 gpu.capability, name_error(code), name_target(gpu.capability));
}

static int load_kernels(void) {
  int code = load_module();
  if (code) return code;
  gpu.functions = gf_allocate((size_t)gf_cuda_kernel_count * sizeof *gpu.functions, "table of kernels");
  if (!gpu.functions) return GF_ERROR_MEMORY;
  for (int i = 0; i < gf_cuda_kernel_count; ++i) {
    code = cu.cuModuleGetFunction(&gpu.functions[i], gpu.module, gf_cuda_kernels[i]);
    if (code != CUDA_SUCCESS) {
      return gf_fail(GF_ERROR_DEVICE, "kernel '%s' is missing from the step's module (%s); recompile the step",
                     gf_cuda_kernels[i], name_error(code));
    }
  }
  return GF_OK;
}

static int refuse_child(void) {
  if (!gpu.process || gpu.process == getpid()) return GF_OK;
  return gf_fail(GF_ERROR_DEVICE, "this process was made by fork() after the first gf_step_create, and CUDA does not"
                 " live on in a child; create steps in the child only, or start a new process");
}

static int is_usable(void) { return gpu.is_open && gpu.process == getpid(); }

static int open_context(void) {
  const char *blocking = getenv("GF_CUDA_BLOCKING");
  gpu.is_blocking = blocking && blocking[0] == '1';
  gpu.last_launched = -1;
  int code = check(cu.cuDevicePrimaryCtxRetain(&gpu.context, gpu.device), "the device gives no context");
  if (code) return code;
  gpu.is_open = 1;
  code = gf_device_enter();
  if (!code) code = check(cu.cuStreamCreate(&gpu.stream, NON_BLOCKING), "the device gives no stream");
  if (!code) code = load_kernels();
  if (code) gf_device_close();
  return code;
}

int gf_device_open(void) {
  int code = refuse_child();
  if (code || gpu.is_open) return code;
  code = load_driver();
  if (code) return code;
  gpu.process = getpid();
  code = find_device();
  return code ? code : open_context();
}

int gf_device_enter(void) {
  int code = refuse_child();
  return code ? code : check(cu.cuCtxSetCurrent(gpu.context), "the device's context cannot be used");
}

void gf_device_close(void) {
  if (!is_usable()) return;
  cu.cuCtxSetCurrent(gpu.context);
  if (gpu.module) cu.cuModuleUnload(gpu.module);
  if (gpu.stream) cu.cuStreamDestroy_v2(gpu.stream);
  cu.cuDevicePrimaryCtxRelease(gpu.device);
  free(gpu.functions);
  gpu.module = gpu.stream = gpu.context = NULL;
  gpu.functions = NULL;
  gpu.is_open = 0;
}

static void *fail_to_allocate(size_t bytes, const char *what) {
  size_t available = 0, total = 0;
  cu.cuMemGetInfo_v2(&available, &total);
  gf_fail(GF_ERROR_MEMORY, "cannot allocate %zu bytes for the %s on device '%s', which has %zu of %zu left; free memory"
          " or compile a smaller batch", bytes, what, gpu.name, available, total);
  return NULL;
}

void *gf_device_allocate(size_t bytes, const char *what) {
  address_t address = 0;
  size_t size = bytes ? gf_align_up(bytes) : GF_ALIGNMENT;
  int code = cu.cuMemAlloc_v2(&address, size);
  if (code == OUT_OF_MEMORY) return fail_to_allocate(size, what);
  if (check(code, "memory of the device cannot be allocated")) return NULL;
  if (check(cu.cuMemsetD8Async(address, 0, size, gpu.stream), "memory of the device cannot be filled")) {
    cu.cuMemFree_v2(address);
    return NULL;
  }
  return (void *)(uintptr_t)address;
}

void gf_device_free(void *memory) {
  if (!memory || !is_usable()) return; /* in a child it is the parent's */
  cu.cuCtxSetCurrent(gpu.context);
  cu.cuMemFree_v2((address_t)(uintptr_t)memory);
}

int gf_device_upload(void *to, const void *from_host, size_t bytes) {
  if (!bytes) return 0;
  return check(cu.cuMemcpyHtoDAsync_v2((address_t)(uintptr_t)to, from_host, bytes, gpu.stream), "copy to the device");
}

int gf_device_download(void *to_host, const void *from, size_t bytes) {
  if (!bytes) return 0;
  return check(cu.cuMemcpyDtoHAsync_v2(to_host, (address_t)(uintptr_t)from, bytes, gpu.stream), "copy from the device");
}

int gf_device_copy(void *to, const void *from, size_t bytes) {
  address_t target = (address_t)(uintptr_t)to, source = (address_t)(uintptr_t)from;
  if (!bytes) return 0;
  return check(cu.cuMemcpyDtoDAsync_v2(target, source, bytes, gpu.stream), "copy on the device");
}

int gf_device_finish(void) {
  int code = cu.cuStreamSynchronize(gpu.stream), last = gpu.last_launched;
  gpu.last_launched = -1;
  if (code == CUDA_SUCCESS || last < 0) return check(code, "the device failed");
  if (gpu.is_blocking) {
    return gf_fail(GF_ERROR_KERNEL, "kernel '%s' failed on the device: %s", gf_cuda_kernels[last], name_error(code));
  }
  return gf_fail(GF_ERROR_KERNEL, "a kernel failed on the device: %s; the last one queued was '%s'; run again with"
                 " GF_CUDA_BLOCKING=1 to learn which", name_error(code), gf_cuda_kernels[last]);
}

void gf_device_abandon(void) {
  cu.cuStreamSynchronize(gpu.stream);
  gpu.last_launched = -1;
}

int gf_cuda_launch(int kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   void **arguments) {
  int code = cu.cuLaunchKernel(gpu.functions[kernel], gx, gy, gz, bx, by, bz, 0, gpu.stream, arguments, NULL);
  if (code != CUDA_SUCCESS) {
    return gf_fail(GF_ERROR_KERNEL, "kernel '%s' cannot be launched on %ux%ux%u blocks of %ux%ux%u threads: %s",
                   gf_cuda_kernels[kernel], gx, gy, gz, bx, by, bz, name_error(code));
  }
  gpu.last_launched = kernel;
  return gpu.is_blocking ? gf_device_finish() : GF_OK;
}
