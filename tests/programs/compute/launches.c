/*
 * A library with a thread that launches a kernel again and again until it is cancelled. The thread
 * runs no Python: one that is cancelled while it waits for the interpreter's lock never lets go of
 * it.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stddef.h>
#include <sys/types.h>
#include <unistd.h>

typedef int set_current(void *);
typedef int launch(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void *, void **, void **);

struct launches {
    set_current *set_current;
    launch *launch;
    void *context, *function;
    int type;
    pid_t thread;
    sem_t ready;
};

static void *
work(void *data)
{
    struct launches *launches = data;
    launches->set_current(launches->context);
    pthread_setcanceltype(launches->type, NULL);
    launches->thread = gettid();
    sem_post(&launches->ready);
    for (;;) {
        launches->launch(launches->function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
        pthread_testcancel();
    }
    return NULL;
}

/* The thread's number, and its handle in `handle`; `type` is how it may be cancelled. */
pid_t
begin_launches(set_current *set_current, launch *launch, void *context, void *function, int type,
               pthread_t *handle)
{
    static struct launches launches;
    launches = (struct launches){set_current, launch, context, function, type, 0, {{0}}};
    sem_init(&launches.ready, 0, 0);
    if (pthread_create(handle, NULL, work, &launches) != 0) {
        return -1;
    }
    sem_wait(&launches.ready);
    return launches.thread;
}
