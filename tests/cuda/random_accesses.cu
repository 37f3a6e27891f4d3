// Does what a table says, so that a test can make up kernels: for each block, phase and thread an operation, and after
// each phase a barrier or none. An operation is 0 or 1 + kind + 4 * place; kinds: read, write, and the same of one byte.
extern "C" __global__ void __launch_bounds__(64) accesses(int* __restrict__ operations, int* __restrict__ barriers, float* __restrict__ words, float* __restrict__ sums) {
  __shared__ float shared_words[4];
  float sum[1];
  sum[0] = 0x0p+0f/*0.000000e+00*/;
  for (int phase = 0; phase < 4; ++phase) {
    int operation = operations[((((((int)blockIdx.x) * 4) + phase) * 64) + ((int)threadIdx.x))];
    if (operation > 0) {
      int kind = ((operation - 1) & 3);
      int place = ((operation - 1) >> 2);
      uint8_t* words_bytes = ((uint8_t*)((place < 16) ? words : shared_words));
      float* all_words = ((place < 16) ? words : shared_words);
      int at = (place & 15);
      if (kind == 0) {
        sum[0] = (sum[0] + all_words[(at >> 2)]);
      }
      if (kind == 1) {
        all_words[(at >> 2)] = sum[0];
      }
      if (kind == 2) {
        sum[0] = (sum[0] + ((float)words_bytes[at]));
      }
      if (kind == 3) {
        words_bytes[at] = ((uint8_t)1);
      }
    }
    if (barriers[phase] == 1) {
      __syncthreads();
    }
    if (barriers[phase] == 2) {
      __syncwarp();
    }
  }
  sums[((((int)blockIdx.x) * 64) + ((int)threadIdx.x))] = sum[0];
}
