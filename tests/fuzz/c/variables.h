/* Included before sources of a program that may end in the middle: their variables go to sections of their own, so that
 * seams.c can put them back before the next run. */
#pragma clang section data = "fuzz_data" bss = "fuzz_bss"
