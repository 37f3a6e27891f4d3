// A context switch of a dozen instructions: the library's own saves the signal mask, a system call each time.
#include "fiber.hpp"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#if defined(__x86_64__)
asm(R"(
.text
.hidden gf_switch
.globl gf_switch
.type gf_switch, @function
gf_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size gf_switch, .-gf_switch
)");
enum { SAVED = 8, ENTRY = 6 };  // words on a sleeping stack, and which of them is returned to; one more for alignment
#elif defined(__aarch64__)
asm(R"(
.text
.hidden gf_switch
.globl gf_switch
.type gf_switch, %function
gf_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size gf_switch, .-gf_switch
)");
enum { SAVED = 20, ENTRY = 11 };
#else
#error "the emulator switches contexts on x86-64 and aarch64 only"
#endif

namespace gf {

constexpr size_t STACK = 128 << 10, PAGE = 4096, EACH = STACK + PAGE;

static char *reserve_stacks() {
  int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void *stacks = mmap(nullptr, EACH * MOST_FIBERS, PROT_READ | PROT_WRITE, kind, -1, 0);
  if (stacks == MAP_FAILED) {
    perror("emulator: no memory for the stacks of a block");
    abort();
  }
  return (char *)stacks;
}

void *prepare_fiber(int number, void (*entry)()) {
  static char *const stacks = reserve_stacks();
  static int guarded;
  for (; guarded <= number; ++guarded)  // an overflow ends there; only of those in use, for a process may have few pieces
    mprotect(stacks + EACH * (size_t)guarded, PAGE, PROT_NONE);
  char *end = stacks + EACH * (size_t)(number + 1);
  end -= (size_t)(number % 29) * 320;  // stacks a power of two apart would all meet in one set of a cache
  void **words = (void **)end - SAVED;
  for (int i = 0; i < SAVED; ++i) words[i] = nullptr;
  words[ENTRY] = (void *)entry;
  return words;
}

}  // namespace gf
