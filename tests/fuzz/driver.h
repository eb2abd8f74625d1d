/*
 * What a fuzzer's target defines: one reader of foreign bytes, and how it is called.
 *
 * A target is compiled with -fsanitize-coverage=trace-pc and both sanitizers; the driver is not.
 */
#ifndef FUZZ_DRIVER_H
#define FUZZ_DRIVER_H

#include <stddef.h>

/* Once, before the first input. */
void fuzz_begin(void);

/* Read the SIZE bytes at DATA, which end where their memory ends. */
void fuzz_one(const unsigned char *data, size_t size);

#define FUZZ_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fuzz_fail(__FILE__, __LINE__, #condition);                                             \
        }                                                                                          \
    } while (0)

_Noreturn void fuzz_fail(const char *file, int line, const char *what);

#endif
