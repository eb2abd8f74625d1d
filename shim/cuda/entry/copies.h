/* The descriptors of copies in the CUDA driver interface, in our own words: see driver.h. */
#ifndef CGPU_CUDA_COPIES_H
#define CGPU_CUDA_COPIES_H

#include "entry/driver.h"

/* CUmemorytype; CUpointer_attribute */
enum { CU_MEMORY_HOST = 1, CU_MEMORY_UNIFIED = 4 };
enum { CU_POINTER_MEMORY_TYPE = 2 };

struct cgpu_copy_2d_v1 { /* not two equal halves: the second begins in the padding of the first */
    unsigned int from_x, from_y;
    int from_type;
    void *from_host;
    CUdeviceptr_v1 from_device;
    CUarray from_array;
    unsigned int from_pitch;
    unsigned int to_x, to_y;
    int to_type;
    void *to_host;
    CUdeviceptr_v1 to_device;
    CUarray to_array;
    unsigned int to_pitch;
    unsigned int width, height;
};

struct cgpu_copy_2d {
    struct {
        size_t x, y;
        int type;
        void *host;
        CUdeviceptr device;
        CUarray array;
        size_t pitch;
    } from, to;
    size_t width, height;
};

struct cgpu_copy_3d_v1 {
    struct {
        unsigned int x, y, z, level;
        int type;
        void *host;
        CUdeviceptr_v1 device;
        CUarray array;
        void *reserved;
        unsigned int pitch, height;
    } from, to;
    unsigned int width, height, depth;
};

/* A copy between GPUs has the contexts in the reserved fields. */
struct cgpu_copy_3d {
    struct {
        size_t x, y, z, level;
        int type;
        void *host;
        CUdeviceptr device;
        CUarray array;
        void *reserved;
        size_t pitch, height;
    } from, to;
    size_t width, height, depth;
};

/* One of a batch of three-dimensional copies. */
enum { CU_OPERAND_POINTER = 1 };

struct cgpu_copy_operand {
    int type;
    union {
        CUdeviceptr address;
        CUarray array;
        uint64_t words[4];
    } side;
};

struct cgpu_copy_operation {
    struct cgpu_copy_operand from, to;
    size_t width, height, depth; /* in elements if one side is an array, else in bytes */
    int order;
    unsigned int flags;
};

struct cgpu_decompression {
    size_t source_bytes, bytes;
    uint32_t *actual_bytes;
    const void *source;
    void *to;
    int algorithm;
    unsigned char padding[20];
};

_Static_assert(sizeof(struct cgpu_copy_2d_v1) == 96, "CUDA_MEMCPY2D_v1 is 96 bytes");
_Static_assert(offsetof(struct cgpu_copy_2d_v1, to_device) == 64, "dstDevice");
_Static_assert(offsetof(struct cgpu_copy_2d_v1, width) == 84, "WidthInBytes");
_Static_assert(sizeof(struct cgpu_copy_2d) == 128, "CUDA_MEMCPY2D is 128 bytes");
_Static_assert(sizeof(struct cgpu_copy_3d_v1) == 144, "CUDA_MEMCPY3D_v1 is 144 bytes");
_Static_assert(sizeof(struct cgpu_copy_3d) == 200, "CUDA_MEMCPY3D is 200 bytes");
_Static_assert(sizeof(struct cgpu_copy_operation) == 112, "CUDA_MEMCPY3D_BATCH_OP is 112 bytes");
_Static_assert(sizeof(struct cgpu_decompression) == 64, "CUmemDecompressParams is 64 bytes");

#endif
