/* Preloaded: a seccomp filter refuses the system calls REFUSED, whose errno is then EPERM. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

enum { ANY = -1, STEPS = 5, MOST = 16 };

static const struct {
    uint32_t number;
    int argument; /* that has the value; ANY: refused with all of them */
    uint32_t value;
} refused[] = {REFUSED};

#define COUNT      (sizeof refused / sizeof *refused)
#define AT(member) ((uint32_t)offsetof(struct seccomp_data, member))

__attribute__((constructor)) static void
install(void)
{
    struct sock_filter code[MOST * STEPS + 1];
    struct sock_fprog program = {.len = COUNT * STEPS + 1, .filter = code};
    _Static_assert(COUNT <= MOST, "too many calls");
    for (size_t i = 0; i < COUNT; i++) {
        int any = refused[i].argument == ANY;
        uint32_t at = any ? AT(nr) : AT(args) + 8 * (uint32_t)refused[i].argument;
        uint32_t value = any ? refused[i].number : refused[i].value;
        const struct sock_filter steps[STEPS] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, AT(nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, refused[i].number, 0, 3),
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        };
        for (int step = 0; step < STEPS; step++) {
            code[i * STEPS + (size_t)step] = steps[step];
        }
    }
    code[COUNT * STEPS] =
        (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, (uint32_t)SECCOMP_RET_ALLOW);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        abort();
    }
}
