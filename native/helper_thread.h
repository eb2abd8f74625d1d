/* Threads of ours in a program's process. They take none of its signals. */
#ifndef CGPU_HELPER_THREAD_H
#define CGPU_HELPER_THREAD_H

#include <pthread.h>

/* Call RUN with ARGUMENT in a new THREAD that takes no signal. 0 or an error number. */
int cgpu_helper_thread_start(void *(*run)(void *), void *argument, pthread_t *thread);

#endif
