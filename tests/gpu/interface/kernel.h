/*
 * The kernel that takes a given time: so many rounds of arithmetic, which only run while
 * the kernel has the GPU. It is called spin_<n>us, for the simulated driver goes by the name.
 */
#ifndef BENCH_GPU_KERNEL_H
#define BENCH_GPU_KERNEL_H

#include "cuda.h"

struct kernel {
    void *function;
    uint64_t out;       /* device memory */
    uint64_t rounds;    /* of each launch */
    uint64_t period_ns; /* from one launch's end to the next one's, back to back and alone */
};

/* When it began and ended, by the GPU's clock, goes to OUT. */
#define KERNEL_PTX                                                                                 \
    ".version 6.0\n.target sm_50\n.address_size 64\n"                                              \
    ".visible .entry %s(.param .u64 out, .param .u64 rounds)\n{\n"                                 \
    "    .reg .pred %%more;\n    .reg .b32 %%x<3>;\n    .reg .b64 %%d<6>;\n"                       \
    "    mov.u64 %%d4, %%globaltimer;\n"                                                           \
    "    ld.param.u64 %%d1, [out];\n    ld.param.u64 %%d2, [rounds];\n"                            \
    "    cvta.to.global.u64 %%d3, %%d1;\n    mov.u32 %%x1, %%clock;\n"                             \
    "again:\n"                                                                                     \
    "    mad.lo.u32 %%x1, %%x1, 1664525, 1013904223;\n"                                            \
    "    add.s64 %%d2, %%d2, -1;\n    setp.gt.s64 %%more, %%d2, 0;\n    @%%more bra again;\n"      \
    "    st.global.u64 [%%d3], %%d4;\n    st.global.u32 [%%d3+16], %%x1;\n"                        \
    "    mov.u64 %%d5, %%globaltimer;\n    st.global.u64 [%%d3+8], %%d5;\n    ret;\n}\n"

static inline uint64_t
kernel_time(struct kernel *kernel, void *stream, unsigned int launches)
{
    void *arguments[] = {&kernel->out, &kernel->rounds};
    int status = 0;
    uint64_t begin;

    must(cuStreamSynchronize(stream), "cuStreamSynchronize");
    begin = clock_ns();
    for (unsigned int i = 0; i < launches; i++) {
        status |= cuda_launch(kernel->function, stream, arguments);
    }
    must(status, "cuLaunchKernel");
    must(cuStreamSynchronize(stream), "cuStreamSynchronize");
    return clock_ns() - begin;
}

/* The kernel of LENGTH_US microseconds, whose stamps go to OUT; its rounds are not known yet. */
static inline struct kernel
kernel_load(unsigned int length_us, uint64_t out)
{
    struct kernel kernel = {.out = out};
    char name[32], text[2048];
    void *module;

    snprintf(name, sizeof name, "spin_%uus", length_us);
    snprintf(text, sizeof text, KERNEL_PTX, name);
    must(cuModuleLoadData(&module, text), "cuModuleLoadData");
    must(cuModuleGetFunction(&kernel.function, module, name), "cuModuleGetFunction");
    return kernel;
}

/* Find out how many rounds take LENGTH_US. The GPU must be free meanwhile. */
static inline void
kernel_measure(struct kernel *kernel, unsigned int length_us, void *stream)
{
    enum { ROUNDS = 1000000, TIMED_US = 100000, WARM_NS = 500000000 };
    static uint64_t warmed_ns;
    unsigned int launches = TIMED_US / length_us + 2;
    uint64_t whole;

    kernel->rounds = ROUNDS;
    do { /* an idle GPU's clocks take a while to rise */
        whole = kernel_time(kernel, stream, 1);
        warmed_ns += whole;
    } while (warmed_ns < WARM_NS);
    whole = kernel_time(kernel, stream, 1);
    kernel->rounds = (uint64_t)ROUNDS * length_us * 1000 / whole + 1;
    kernel_time(kernel, stream, 2);
    kernel->period_ns = kernel_time(kernel, stream, launches) / launches;
}

static inline struct kernel
kernel_make(unsigned int length_us, uint64_t out, void *stream)
{
    struct kernel kernel = kernel_load(length_us, out);

    kernel_measure(&kernel, length_us, stream);
    return kernel;
}

#endif
