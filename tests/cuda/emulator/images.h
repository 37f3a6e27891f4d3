/* What a module's image says about itself: a cubin is an ELF file, PTX is text. */
#ifndef IMAGES_H
#define IMAGES_H

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
  INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NO_BINARY_FOR_GPU = 209, INVALID_PTX = 218, UNSUPPORTED_PTX_VERSION = 222,
  INVALID_HANDLE = 400, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700
};

static inline int is_cubin(const unsigned char *image) { return !memcmp(image, ELFMAG, SELFMAG); }

/* The newest PTX that a driver of this CUDA version (10020 is 10.2) translates, as 10 * major + minor. */
static inline int newest_ptx(int driver) {
  int major = driver / 1000, minor = driver % 1000 / 10;
  if (major >= 13) return 90 + minor;
  if (major == 12) return 80 + minor;
  if (major == 11) return 70 + minor;
  return major == 10 && minor == 2 ? 65 : 60;
}

/* NVIDIA promises nothing for machine code between two Tegras, or between a Tegra and a card. */
static inline int is_tegra(int arch) { return arch == 32 || arch == 53 || arch == 62 || arch == 72 || arch == 87; }

static inline int check_cubin(const unsigned char *image, int capability) {
  const Elf64_Ehdr *head = (const Elf64_Ehdr *)image;
  enum { MACHINE_CUDA = 190 };
  if (head->e_ident[EI_CLASS] != ELFCLASS64 || head->e_machine != MACHINE_CUDA) return INVALID_IMAGE;
  int arch = (int)(head->e_flags & 0xff);
  if (arch == capability) return SUCCESS;
  return arch / 10 == capability / 10 && arch < capability && !is_tegra(arch) && !is_tegra(capability)
             ? SUCCESS
             : NO_BINARY_FOR_GPU;
}

static inline int check_ptx(const char *text, int capability, int driver) {
  int major, minor, arch;
  const char *version = strstr(text, ".version "), *target = strstr(text, ".target sm_");
  if (!version || sscanf(version, ".version %d.%d", &major, &minor) != 2) return INVALID_IMAGE;
  if (!target || sscanf(target, ".target sm_%d", &arch) != 1) return INVALID_PTX;
  if (10 * major + minor > newest_ptx(driver)) return UNSUPPORTED_PTX_VERSION;
  return arch <= capability ? SUCCESS : INVALID_PTX;
}

static inline int check_image(const void *image, int capability, int driver) {
  return is_cubin(image) ? check_cubin(image, capability) : check_ptx(image, capability, driver);
}

static inline int cubin_has_function(const unsigned char *image, const char *name) {
  const Elf64_Ehdr *head = (const Elf64_Ehdr *)image;
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(image + head->e_shoff);
  for (int i = 0; i < head->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const Elf64_Sym *symbols = (const Elf64_Sym *)(image + sections[i].sh_offset);
    const char *names = (const char *)image + sections[sections[i].sh_link].sh_offset;
    for (size_t j = 0; j < sections[i].sh_size / sizeof *symbols; ++j)
      if (ELF64_ST_TYPE(symbols[j].st_info) == STT_FUNC && !strcmp(names + symbols[j].st_name, name)) return 1;
  }
  return 0;
}

static inline int image_has_function(const void *image, const char *name) {
  if (is_cubin(image)) return cubin_has_function(image, name);
  char entry[512];
  snprintf(entry, sizeof entry, ".entry %s(", name);
  return strstr(image, entry) != NULL;
}

#endif
