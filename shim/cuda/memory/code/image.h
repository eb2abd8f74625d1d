/* The most that an image can need, by its own headers. */
#ifndef CGPU_CUDA_IMAGE_H
#define CGPU_CUDA_IMAGE_H

#include "entry/shim.h"

/* More than any GPU has: the limit of sums. */
#define CGPU_IMAGE_MOST (UINT64_C(1) << 43)

/* The bound of an image that cannot be read. */
enum { CGPU_CODE_PLAUSIBLE = 64 << 20 };

struct cgpu_image {
    uint64_t bytes;     /* the most that loading may take */
    uint64_t variables; /* in global memory, as far as it states their sizes; 0: it states none */
    bool hidden;        /* it has parts that cannot be read, which may hold more variables */
    bool read;          /* of a fat binary: some member could be read */
    bool managed;       /* a managed variable is declared */
    bool calls;         /* it may call what the driver adds: printf, assert, malloc */
    bool heap;          /* it calls malloc */
};

/* A x B, at most CGPU_IMAGE_MOST. */
static inline uint64_t
cgpu_image_product(uint64_t a, uint64_t b)
{
    uint64_t result;
    return __builtin_mul_overflow(a, b, &result) || result > CGPU_IMAGE_MOST ? CGPU_IMAGE_MOST
                                                                             : result;
}

static inline void
cgpu_image_add(struct cgpu_image *image, uint64_t bytes)
{
    bytes = bytes < CGPU_IMAGE_MOST ? bytes : CGPU_IMAGE_MOST;
    image->bytes = image->bytes < CGPU_IMAGE_MOST - bytes ? image->bytes + bytes : CGPU_IMAGE_MOST;
}

static inline void
cgpu_image_add_variables(struct cgpu_image *image, uint64_t bytes)
{
    struct cgpu_image sum = {.bytes = image->variables};
    cgpu_image_add(&sum, bytes);
    image->variables = sum.bytes;
}

/* Look through the code at DATA, whose bounds only its own headers tell. */
void cgpu_image_scan(const void *data, struct cgpu_image *image);

/* Scan the code in the file at PATH. */
void cgpu_image_scan_file(const char *path, struct cgpu_image *image);

#endif
