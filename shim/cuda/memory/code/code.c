/*
 * What loading code takes.
 *
 * The driver does not report it, and takes it in units of its own choice. So the GPU's free memory
 * is compared before and after, less what this container was charged meanwhile. Other containers
 * allocate and free at the same time, so the difference counts at most as much as the image can
 * need (image.c), and at least as much as the variables that it declares.
 *
 * Several threads can load at once, and no lock is held while the driver compiles. All loads in
 * progress share one point of comparison, which the first of them sets. A load that ends is charged
 * what is missing since that point, up to its own bound, and moves the point to the present. What
 * remains missing is for the other loads, up to what they can need.
 */
#include "memory/code/code.h"
#include "entry/shim.h"
#include "memory/account.h"
#include "memory/charge.h"
#include "memory/growth.h"
#include "memory/target.h"

/*
 * The most that the driver adds to a context for printf, assert and malloc, its *library*: by `make
 * gpu-check` 62 to 138 MiB on an H200. A context that was charged LIBRARY_IS_THERE has it.
 */
enum { LIBRARY_BYTES = 160 << 20, LIBRARY_IS_THERE = 16 << 20 };
enum { ANY = 1, MALLOC = 2 };

struct look {
    uint64_t available, used;
    bool known; /* the driver has reported how much memory is free */
};

static struct look
look(int32_t gpu)
{
    size_t available = 0;
    size_t total;
    int mode = cgpu_capture_mode_relax();
    CUresult status = cgpu_real.cuMemGetInfo_v2(&available, &total);
    cgpu_capture_mode_restore(mode);
    return (struct look){
        .available = available,
        .used = cgpu_ledger_used(cgpu_state->ledger, (uint32_t)gpu),
        .known = status == CUDA_SUCCESS,
    };
}

/*
 * Memory that is gone since WATCH was set and is not charged; 0 if the driver reports no figures.
 */
static uint64_t
missing(const struct cgpu_code_watch *watch, const struct look *now)
{
    int64_t taken = (int64_t)(watch->available - now->available);
    int64_t charged = (int64_t)(now->used - watch->used);
    return watch->known && now->known && taken > charged ? (uint64_t)(taken - charged) : 0;
}

static uint64_t
smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t
larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

void
cgpu_code_calls(const struct cgpu_image *image)
{
    uint32_t calls = (image->calls ? ANY : 0) | (image->heap ? MALLOC : 0);
    if (calls != 0 && cgpu_state_is_attached()) {
        /* relaxed: it only raises what may be charged */
        __atomic_fetch_or(&cgpu_state->kinds.calls, calls, __ATOMIC_RELAXED);
    }
}

static uint64_t
library_bytes(uint64_t owner)
{
    struct cgpu_holding holding;
    uint64_t handle = cgpu_growth_handle(owner, CGPU_GROWTH_LIBRARY);
    return cgpu_account_find(CGPU_KIND_GROWTH, handle, &holding) ? holding.bytes : 0;
}

static bool
calls(uint32_t which)
{
    return (__atomic_load_n(&cgpu_state->kinds.calls, __ATOMIC_RELAXED) & which) != 0;
}

static bool
lacks_heap(uint64_t owner)
{
    return calls(MALLOC) && !cgpu_growth_has_heap(owner);
}

bool
cgpu_code_lacks_library(void)
{
    struct cgpu_target target;
    return cgpu_state_is_attached() && calls(ANY) && cgpu_target_current(&target) == CUDA_SUCCESS &&
           target.gpu >= 0 &&
           (library_bytes(target.owner) < LIBRARY_IS_THERE || lacks_heap(target.owner));
}

/*
 * Begin to measure a load. BRINGS: ANY and MALLOC, if the driver may add its library or a heap now.
 */
static CUresult
begin(struct cgpu_code *code, uint64_t bound, uint32_t brings)
{
    struct cgpu_target target;
    *code = (struct cgpu_code){.gpu = CGPU_NO_GPU, .image = bound};
    CUresult status = cgpu_target_current(&target);
    if (status != CUDA_SUCCESS || target.gpu < 0) {
        return status != CUDA_SUCCESS ? status : CUDA_ERROR_OUT_OF_MEMORY;
    }
    code->gpu = target.gpu;
    code->owner = target.owner;
    struct cgpu_code_watch *watch = &cgpu_state->kinds.code_watch[target.gpu];
    pthread_mutex_lock(&cgpu_state->kinds.code);
    uint64_t heap = 0;
    if ((brings & MALLOC) != 0 && lacks_heap(target.owner)) {
        status = cgpu_growth_heap(&target, &heap);
    }
    if (status != CUDA_SUCCESS) {
        pthread_mutex_unlock(&cgpu_state->kinds.code);
        return status;
    }
    watch->used += heap;                               /* no load has taken it */
    if (calls(brings & ANY) && !watch->adds_library) { /* one load at a time may bring it */
        uint64_t present = library_bytes(target.owner);
        code->library = present < LIBRARY_BYTES ? LIBRARY_BYTES - present : 0;
        watch->adds_library = code->library != 0;
    }
    if (watch->loads == 0) {
        struct look now = look(target.gpu);
        watch->available = now.available;
        watch->used = now.used;
        watch->known = now.known;
    }
    watch->loads += 1;
    watch->bounds += bound + code->library;
    pthread_mutex_unlock(&cgpu_state->kinds.code);
    return CUDA_SUCCESS;
}

CUresult
cgpu_code_begin(struct cgpu_code *code, uint64_t bound)
{
    return begin(code, bound, ANY | MALLOC);
}

CUresult
cgpu_code_begin_function(struct cgpu_code *code, uint64_t bound)
{
    return begin(code, bound, ANY);
}

CUresult
cgpu_code_begin_plain(struct cgpu_code *code, uint64_t bound)
{
    return begin(code, bound, 0);
}

static void
leave(struct cgpu_code_watch *watch, const struct cgpu_code *code)
{
    watch->loads -= 1;
    watch->bounds -= code->image + code->library;
    watch->adds_library = watch->adds_library && code->library == 0;
}

void
cgpu_code_cancel(const struct cgpu_code *code)
{
    pthread_mutex_lock(&cgpu_state->kinds.code);
    leave(&cgpu_state->kinds.code_watch[code->gpu], code);
    pthread_mutex_unlock(&cgpu_state->kinds.code);
}

static uint64_t
least_of(const struct cgpu_code *code)
{
    return code->payer_kind == 0 ? code->least
                                 : cgpu_account_left(code->least, code->payer_kind, code->payer);
}

/*
 * The part of TOTAL that the driver added. Its first part comes whole, and the image's own part is
 * small in comparison. The driver keeps what it added, so that must not be given back with the
 * image.
 */
static uint64_t
library_part(const struct cgpu_code *code, uint64_t total)
{
    bool first = code->library > LIBRARY_BYTES - LIBRARY_IS_THERE;
    uint64_t most = smaller(total > code->least ? total - code->least : 0, code->library);
    uint64_t beyond = total > code->image ? total - code->image : 0;
    return first && most >= LIBRARY_IS_THERE ? most : beyond;
}

/* Under the lock: charge what the load took, up to its bound. */
static CUresult
end(struct cgpu_code *code)
{
    struct cgpu_code_watch *watch = &cgpu_state->kinds.code_watch[code->gpu];
    uint64_t charged;
    leave(watch, code);
    struct look now = look(code->gpu);
    uint64_t gone = missing(watch, &now);
    uint64_t total = smaller(gone, code->image + code->library);
    uint64_t others = smaller(gone - total, watch->bounds);
    code->rest = library_part(code, total);
    code->taken = larger(total - code->rest, least_of(code)) + code->rest;
    code->beyond = gone - total - others;
    watch->available = now.available + others;
    watch->used = now.used + code->taken; /* it is charged now, or unloaded */
    watch->known = now.known;
    return cgpu_account_charge(code->gpu, code->taken, &charged);
}

/*
 * If there was no room, reclaim and charge again. Do this without the lock: reclaiming takes time.
 */
static CUresult
insist(const struct cgpu_code *code, CUresult status)
{
    uint64_t charged;
    return status == CUDA_ERROR_OUT_OF_MEMORY ? cgpu_charge(code->gpu, code->taken, &charged)
                                              : status;
}

CUresult
cgpu_code_end(struct cgpu_code *code)
{
    pthread_mutex_lock(&cgpu_state->kinds.code);
    CUresult status = end(code);
    pthread_mutex_unlock(&cgpu_state->kinds.code);
    return insist(code, status);
}

CUresult
cgpu_code_keep_rest(const struct cgpu_code *code)
{
    struct cgpu_target target = {.gpu = code->gpu, .owner = code->owner};
    return code->rest != 0 ? cgpu_growth_keep(&target, CGPU_GROWTH_LIBRARY, code->rest)
                           : CUDA_SUCCESS;
}

void
cgpu_code_refused(struct cgpu_code *code)
{
    cgpu_account_force(code->gpu, code->rest);
    (void)cgpu_code_keep_rest(code);
}

static CUresult
keep_own(const struct cgpu_code *code, uint32_t kind, uint64_t handle)
{
    struct cgpu_holding holding;
    uint64_t bytes = code->taken - code->rest;
    if (bytes == 0) {
        return CUDA_SUCCESS;
    }
    /* If another thread adds or frees the holding meanwhile, the program itself has a race. */
    if (cgpu_account_find(kind, handle, &holding)) {
        holding.bytes += bytes;
        if (cgpu_holdings_update(cgpu_state->holdings, &holding) == CGPU_OK) {
            return CUDA_SUCCESS;
        }
    }
    holding = (struct cgpu_holding){
        .handle = handle,
        .owner = code->owner,
        .bytes = bytes,
        .kind = kind,
        .gpu = (uint32_t)code->gpu,
    };
    return cgpu_account_hold(&holding);
}

CUresult
cgpu_code_keep(const struct cgpu_code *code, uint32_t kind, uint64_t handle)
{
    CUresult status = keep_own(code, kind, handle);
    return status == CUDA_SUCCESS ? cgpu_code_keep_rest(code) : status;
}

CUresult
cgpu_code_end_loaded(struct cgpu_code *code, uint32_t kind, uint64_t handle)
{
    pthread_mutex_lock(&cgpu_state->kinds.code);
    CUresult status = end(code);
    CUresult kept = keep_own(code, kind, handle);
    pthread_mutex_unlock(&cgpu_state->kinds.code);
    if (kept == CUDA_SUCCESS) {
        kept = cgpu_code_keep_rest(code);
    }
    status = insist(code, status);
    if (status != CUDA_SUCCESS) {
        cgpu_account_force(code->gpu, code->taken);
    }
    return status != CUDA_SUCCESS ? status : kept;
}
