/* Sets up the proxy when it is loaded. */
#include "compute/launch_state.h"
#include "compute/monitor.h"
#include "entry/shim.h"

__attribute__((constructor)) static void
setup(void)
{
    void *library = cgpu_real_open();
    cgpu_real_setup(library);
    cgpu_log_setup();
    cgpu_state_setup();
    cgpu_launch_state_setup();
    if (cgpu_launch_state == NULL) {
        cgpu_state = NULL; /* a process that cannot launch allocates nothing either */
    }
    cgpu_monitor_setup();
    cgpu_lookup_setup(library);
    cgpu_real_hide_missing(library);
}
