/* What is recorded of modules and libraries that were loaded. */
#ifndef CGPU_CUDA_LIBRARY_H
#define CGPU_CUDA_LIBRARY_H

#include "entry/shim.h"
#include "memory/code/code.h"

/* The record of an image that was loaded. */
struct cgpu_loaded {
    uint64_t serial; /* no other module or library of this process ever has it */
    uint64_t bound;  /* the most bytes that it can take in a context */
};

/* The value for a holding's `extra`: BOUND, and the next serial. */
uint64_t cgpu_module_remember(uint64_t bound);

/* Read that value from a holding. If there is no holding: no serial, and a small bound. */
struct cgpu_loaded cgpu_module_loaded(uint32_t kind, const void *handle);

/* Record what the variables of LIBRARY take in each context. */
CUresult cgpu_library_note_variables(const void *library, uint64_t bytes);

/*
 * A kernel's handle is given out, so a launch may load LIBRARY into the current context. If LIBRARY
 * has variables, load it at once, so that they are charged. OUT_OF_MEMORY: they do not fit, and
 * stay charged.
 */
CUresult cgpu_library_load_variables(CUlibrary library);

/*
 * Begin to measure before a use of LIBRARY that may load it into the current context. It is charged
 * as CGPU_KIND_LIBRARY, under a key mixed from LIBRARY and its owner.
 */
CUresult cgpu_library_begin(struct cgpu_code *code, const void *library);

/* Record that PART is a kernel or module of LIBRARY. */
CUresult cgpu_library_note_part(const void *part, const void *library);

/* The library of PART; NULL: none. */
const void *cgpu_library_of(const void *part);

#endif
