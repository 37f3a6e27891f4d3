// Threads of execution that switch only where they say so.
#pragma once

// Leaves the running fiber, its stack pointer in *save, and goes on with the one whose stack pointer was saved.
extern "C" void gf_switch(void **save, void *to);

namespace gf {

enum { MOST_FIBERS = 1024 };

// A stack pointer from which gf_switch enters `entry`, which must never return. Forgets what that fiber did before.
void *prepare_fiber(int number, void (*entry)());

}  // namespace gf
