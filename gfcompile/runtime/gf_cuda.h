/* What the generated code of a CUDA step gives to its launcher, and how it launches. Internal: never exported. */
#ifndef GF_CUDA_H
#define GF_CUDA_H

#include <stddef.h>

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

typedef struct {
  int arch; /* 53 for sm_53 */
  int is_ptx;
  const unsigned char *data; /* a cubin, or PTX that ends with a zero */
  size_t bytes;
} gf_cuda_image;

extern const gf_cuda_image gf_cuda_images[]; /* of the same kernels */
extern const int gf_cuda_image_count;
extern const char *const gf_cuda_kernels[]; /* their names in every image */
extern const int gf_cuda_kernel_count;

/* Queues kernel `kernel` on a grid of gx * gy * gz blocks of bx * by * bz threads. arguments[i] is the address of the
 * kernel's argument i, as for cuLaunchKernel. 0, or not 0 with a text; what goes wrong on the device shows in
 * gf_device_finish. */
int gf_cuda_launch(int kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   void **arguments);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
