// Kernels in the manner of TVM's code generator, for the tests of the emulator.
extern "C" __global__ void __launch_bounds__(64) scale_add(float* __restrict__ out, float* __restrict__ x, float* __restrict__ y);
extern "C" __global__ void __launch_bounds__(64) scale_add(float* __restrict__ out, float* __restrict__ x, float* __restrict__ y) {
  out[((((int)blockIdx.x) * 64) + ((int)threadIdx.x))] = ((x[((((int)blockIdx.x) * 64) + ((int)threadIdx.x))] * 0x1p+1f/*2.000000e+00*/) + y[((((int)blockIdx.x) * 64) + ((int)threadIdx.x))]);
}

// c[32][32] = a[32][64] @ b[64][32], a block for 16x16 of them
extern "C" __global__ void __launch_bounds__(256) matmul(float* __restrict__ a, float* __restrict__ b, float* __restrict__ c) {
  float c_local[1];
  __shared__ alignas(64) float a_shared[256];
  __shared__ float b_shared[256];
  c_local[0] = 0x0p+0f/*0.000000e+00*/;
  for (int k_0 = 0; k_0 < 4; ++k_0) {
    __syncthreads();
    a_shared[((((int)threadIdx.y) * 16) + ((int)threadIdx.x))] = a[((((((int)blockIdx.y) * 1024) + (((int)threadIdx.y) * 64)) + (k_0 * 16)) + ((int)threadIdx.x))];
    b_shared[((((int)threadIdx.y) * 16) + ((int)threadIdx.x))] = b[((((k_0 * 512) + (((int)threadIdx.y) * 32)) + (((int)blockIdx.x) * 16)) + ((int)threadIdx.x))];
    __syncthreads();
    for (int k_1 = 0; k_1 < 16; ++k_1) {
      c_local[0] = (c_local[0] + (a_shared[((((int)threadIdx.y) * 16) + k_1)] * b_shared[((k_1 * 16) + ((int)threadIdx.x))]));
    }
  }
  c[((((((int)blockIdx.y) * 512) + (((int)threadIdx.y) * 32)) + (((int)blockIdx.x) * 16)) + ((int)threadIdx.x))] = c_local[0];
}

// sums of rows of 64, a block of two warps a row
extern "C" __global__ void __launch_bounds__(64) row_sum(float* __restrict__ x, float* __restrict__ sums) {
  float red_buf0[1];
  uint mask[1];
  float t0[1];
  __shared__ alignas(64) float red_result[2];
  red_buf0[0] = x[((((int)blockIdx.x) * 64) + ((int)threadIdx.x))];
  mask[0] = __activemask();
  t0[0] = __shfl_down_sync(mask[0], red_buf0[0], 16, 32);
  red_buf0[0] = (red_buf0[0] + t0[0]);
  t0[0] = __shfl_down_sync(mask[0], red_buf0[0], 8, 32);
  red_buf0[0] = (red_buf0[0] + t0[0]);
  t0[0] = __shfl_down_sync(mask[0], red_buf0[0], 4, 32);
  red_buf0[0] = (red_buf0[0] + t0[0]);
  t0[0] = __shfl_down_sync(mask[0], red_buf0[0], 2, 32);
  red_buf0[0] = (red_buf0[0] + t0[0]);
  t0[0] = __shfl_down_sync(mask[0], red_buf0[0], 1, 32);
  red_buf0[0] = (red_buf0[0] + t0[0]);
  if ((((int)threadIdx.x) % 32) == 0) {
    ((volatile float*)red_result)[(((int)threadIdx.x) >> 5)] = red_buf0[0];
  }
  __syncthreads();
  if (((int)threadIdx.x) == 0) {
    sums[((int)blockIdx.x)] = (((volatile float*)red_result)[0] + ((volatile float*)red_result)[1]);
  }
}

// bytes and vectors: counts[i] = how many of four bytes are not zero; twice as wide out[i]
extern "C" __global__ void __launch_bounds__(32) bytes(uint8_t* __restrict__ counts, uint8_t* __restrict__ x, float* __restrict__ pairs) {
  uchar4 v_ = *(uchar4*)(x + (((int)threadIdx.x) * 4));
  counts[((int)threadIdx.x)] = ((uint8_t)((((v_.x != 0) + (v_.y != 0)) + (v_.z != 0)) + (v_.w != 0)));
  *(float2*)(pairs + (((int)threadIdx.x) * 2)) = make_float2(((float)v_.x), rsqrtf(((float)max(v_.w, 1))));
}

// what a warp says to itself through each kind of shuffle, in groups of eight
extern "C" __global__ void __launch_bounds__(32) shuffles(int* __restrict__ out) {
  int me = ((int)threadIdx.x);
  out[me] = __shfl_sync(0xffffffff, me, 3, 8);
  out[(me + 32)] = __shfl_up_sync(0xffffffff, me, 2, 8);
  out[(me + 64)] = __shfl_down_sync(0xffffffff, me, 2, 8);
  out[(me + 96)] = __shfl_xor_sync(0xffffffff, me, 1, 8);
  if (me < 5) {
    out[(me + 128)] = ((int)__activemask());
  } else {
    out[(me + 128)] = ((int)__activemask());
  }
}

// neighbours in a warp through shared memory
extern "C" __global__ void __launch_bounds__(32) neighbours(float* __restrict__ x, float* __restrict__ out) {
  __shared__ float line[32];
  line[((int)threadIdx.x)] = x[((int)threadIdx.x)];
  __syncwarp();
  out[((int)threadIdx.x)] = line[((((int)threadIdx.x) + 1) % 32)];
}
