/* The harness of the C tests: TEST defines and registers one, CHECK fails it with the line. */
#ifndef CHECK_H
#define CHECK_H

#include <stdint.h>
#include <sys/types.h>

#include "ledger/ledger.h"
#include "ledger/ledger_file.h"

struct check_test {
    const char *name;
    void (*run)(void);
    struct check_test *next;
};

void check_register(struct check_test *test);
_Noreturn void check_fail(const char *file, int line, const char *what);

#define TEST(name)                                                                                 \
    static void name(void);                                                                        \
    __attribute__((constructor)) static void name##_register(void)                                 \
    {                                                                                              \
        static struct check_test test = {#name, name, 0};                                          \
        check_register(&test);                                                                     \
    }                                                                                              \
    static void name(void)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            check_fail(__FILE__, __LINE__, #condition);                                            \
        }                                                                                          \
    } while (0)

/* Path of a fresh ledger; removed when the test ends. */
const char *check_ledger(void);

/* A fresh ledger's path in *PATH if PATH is given, and this process attached to it. */
struct cgpu_ledger *check_attach(const char *path);

/* The file of the ledger at PATH, mapped to be looked at and to be spoilt. */
struct cgpu_ledger_file *check_map(const char *path);

/* Run BODY in a forked child, which exits with 0 if it returns; its pid. */
pid_t check_fork(void (*body)(void *), void *argument);

/* The child's exit status; 128 and its signal if it was killed. */
int check_wait(pid_t child);

/* A page shared with all later children. */
void *check_shared(void);

double check_seconds(void);
void check_sleep(double seconds);

#endif
