/* Helper threads of ours: see helper_thread.h. */
#include "helper_thread.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>

/*
 * The stack also holds all thread-local storage, which may be large. No interface shows its size.
 */
#define STACK_BYTES ((size_t)1 << 20)
#define STACK_MOST  ((size_t)1 << 30)

/* Start a thread with a stack of STACK bytes. EINVAL: that stack is too small. */
static int
start_with(size_t stack, void *(*run)(void *), void *argument, pthread_t *thread)
{
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);

    if (error == 0) {
        pthread_attr_setstacksize(&attributes, stack);
        error = pthread_create(thread, &attributes, run, argument);
        pthread_attr_destroy(&attributes);
    }
    return error;
}

int
cgpu_helper_thread_start(void *(*run)(void *), void *argument, pthread_t *thread)
{
    int error = EINVAL;
    sigset_t all;
    sigset_t before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (size_t stack = STACK_BYTES; stack <= STACK_MOST && error == EINVAL; stack *= 2) {
        error = start_with(stack, run, argument, thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}
