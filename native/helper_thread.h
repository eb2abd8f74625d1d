/* Helper threads of ours, in processes whose signals are for others. */
#ifndef CGPU_HELPER_THREAD_H
#define CGPU_HELPER_THREAD_H

#include <pthread.h>

/* Call RUN with ARGUMENT in a new THREAD that takes no signal. 0 or an error number. */
int cgpu_helper_thread_start(void *(*run)(void *), void *argument, pthread_t *thread);

#endif
