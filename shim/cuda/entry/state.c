/*
 * This process's part in the container: the limits, its ledger slot and its holdings.
 *
 * The limits are mapped when the library is loaded. cuInit attaches the ledger, so that a program
 * that never uses CUDA takes no slot. All that a child must not inherit is in pages that a fork
 * wipes.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "base.h"
#include "entry/host_clock.h"
#include "entry/shim.h"
#include "entry/thread.h"
#include "mapped_limits.h"

struct cgpu_state *cgpu_state;
const struct cgpu_limits *cgpu_limits;
__thread struct cgpu_thread cgpu_thread __attribute__((tls_model("initial-exec")));

void
cgpu_state_setup(void)
{
    cgpu_limits = cgpu_mapped_limits_open();
    void *page = mmap(NULL, sizeof(struct cgpu_state), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page != MAP_FAILED && madvise(page, sizeof(struct cgpu_state), MADV_WIPEONFORK) == 0) {
        cgpu_state = page; /* zeros are valid mutexes */
    }
}

bool
cgpu_state_is_attached(void)
{
    /* acquire: pairs with the release in attach(): what was written before the flag is visible. */
    return cgpu_state != NULL && __atomic_load_n(&cgpu_state->attached, __ATOMIC_ACQUIRE) != 0;
}

/* Under the lock: attach. Returns 0 or a negative status; on failure nothing is left attached. */
static int
attach(void)
{
    char path[CGPU_BASE_PATH_SIZE];
    int status = cgpu_base_path(path, sizeof(path), "ledger");
    if (status == 0) {
        status = cgpu_holdings_create(&cgpu_state->holdings);
    }
    if (status != 0) {
        return status;
    }
    status = cgpu_blocks_create(&cgpu_state->blocks);
    if (status == 0) {
        status = cgpu_ledger_attach(path, (uint32_t)getpid(), &cgpu_state->ledger);
    }
    if (status != 0) {
        cgpu_blocks_destroy(cgpu_state->blocks);
        cgpu_holdings_destroy(cgpu_state->holdings);
        return status;
    }
    /* In a forked child, the only thread must not use what it remembers from the parent. */
    cgpu_thread.context = NULL;
    cgpu_state->generation = 1;
    /* relaxed: no thread compares times with the host's before it is attached */
    __atomic_store_n(&cgpu_state->clock_ahead, cgpu_host_clock_ahead(), __ATOMIC_RELAXED);
    __atomic_store_n(&cgpu_state->attached, 1, __ATOMIC_RELEASE);
    cgpu_log_misstated();
    return 0;
}

static const char *
reason(int status)
{
    switch (status) {
    case CGPU_EFULL:
        return "the ledger has no free process slot";
    case CGPU_EFORMAT:
        return "the ledger is broken or of another release";
    default:
        return "the ledger cannot be opened";
    }
}

CUresult
cgpu_state_attach(void)
{
    if (cgpu_limits == NULL || cgpu_state == NULL) {
        cgpu_log_text(CGPU_LOG_STATE, "no CUDA in this process: ",
                      cgpu_limits == NULL ? "the limits are missing, broken or of another release"
                                          : "no 45 MB of address space at its start (ulimit -v)");
        return CUDA_ERROR_NOT_PERMITTED;
    }
    pthread_mutex_lock(&cgpu_state->lock);
    int status = cgpu_state_is_attached() ? 0 : attach();
    pthread_mutex_unlock(&cgpu_state->lock);
    if (status != 0) {
        cgpu_log_text(CGPU_LOG_STATE, "no CUDA in this process: ", reason(status));
        return CUDA_ERROR_NOT_PERMITTED;
    }
    return CUDA_SUCCESS;
}

/*
 * Start the driver. The process attaches first, because the driver may load tools into it that
 * allocate before the call returns.
 */
CUresult
cgpu_start(CUresult (*real)(unsigned int), unsigned int flags)
{
    CUresult status = cgpu_state_attach();
    return status == CUDA_SUCCESS ? real(flags) : status;
}
