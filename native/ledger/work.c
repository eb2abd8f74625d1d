/* A process's work on a GPU, as the arbiter sees it: see work.h. */
#include "ledger/work.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "futex.h"
#include "ledger/attachment.h"
#include "ledger/lock.h"
#include "ledger/slot.h"

uint32_t
cgpu_work_bound(const struct cgpu_ledger_file *file)
{
    /* acquire: a work that was claimed is below the bound that is read here */
    uint32_t seen = __atomic_load_n(&file->work_bound, __ATOMIC_ACQUIRE);

    return seen < CGPU_LEDGER_WORKS ? seen : CGPU_LEDGER_WORKS;
}

static void
raise_bound(struct cgpu_ledger_file *file, uint32_t least)
{
    uint32_t seen = __atomic_load_n(&file->work_bound, __ATOMIC_RELAXED);

    while (seen < least && !__atomic_compare_exchange_n(&file->work_bound, &seen, least, false,
                                                        __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    }
}

struct cgpu_ledger_work *
cgpu_work_find(const struct cgpu_ledger *ledger, uint32_t gpu)
{
    struct cgpu_ledger_work *works = ledger->file->works;
    uint32_t end = cgpu_work_bound(ledger->file);

    for (uint32_t i = 0; i < end; i++) {
        struct cgpu_work_key key = cgpu_work_key_of(&works[i]);

        if (key.owner == ledger->word && key.gpu == gpu) {
            return &works[i];
        }
    }
    return NULL;
}

/*
 * Claim a free work for GPU. It is all zeros, so only its owner and GPU are stored. NULL: none is
 * free.
 */
static struct cgpu_ledger_work *
take(struct cgpu_ledger *ledger, uint32_t gpu)
{
    struct cgpu_ledger_work *works = ledger->file->works;
    cgpu_work_word mine = cgpu_work_word_of((struct cgpu_work_key){ledger->word, gpu});

    for (uint32_t i = 0; i < CGPU_LEDGER_WORKS; i++) {
        cgpu_work_word none = 0;

        /* acquire: the zeros of its last owner are seen */
        if (__atomic_compare_exchange_n((cgpu_work_word *)&works[i], &none, mine, false,
                                        __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
            raise_bound(ledger->file, i + 1);
            return &works[i];
        }
    }
    return NULL;
}

int
cgpu_work_claim(struct cgpu_ledger *ledger, uint32_t gpu, struct cgpu_ledger_work **out)
{
    if (ledger == NULL || ledger->file == NULL || gpu % CGPU_LEDGER_SHARINGS >= CGPU_MAX_GPUS ||
        out == NULL) {
        return CGPU_EINVAL;
    }
    *out = cgpu_work_find(ledger, gpu);
    if (*out == NULL) {
        *out = take(ledger, gpu);
    }
    if (*out == NULL) {
        cgpu_slot_reap(ledger, true);
        *out = take(ledger, gpu);
    }
    return *out != NULL ? CGPU_OK : CGPU_EFULL;
}

struct cgpu_ledger_gpu *
cgpu_work_sums(struct cgpu_ledger *ledger, uint32_t gpu)
{
    return &ledger->file->gpus[gpu];
}

void
cgpu_work_ring(struct cgpu_ledger *ledger, uint32_t gpu)
{
    uint32_t *bell = &ledger->file->gpus[gpu].bell;

    /* release: an arbiter that sees the new number also sees what it was rung for */
    __atomic_add_fetch(bell, 1, __ATOMIC_RELEASE);
    cgpu_futex_wake(bell, FUTEX_WAKE, INT_MAX);
}

void
cgpu_work_clear(void *work)
{
    memset((char *)work + sizeof(cgpu_work_word), 0,
           sizeof(struct cgpu_ledger_work) - sizeof(cgpu_work_word));
    /* release: the next process that claims it sees zeros */
    __atomic_store_n((cgpu_work_word *)work, 0, __ATOMIC_RELEASE);
}

void
cgpu_work_free(struct cgpu_ledger_file *file, uint32_t index)
{
    uint32_t end = cgpu_work_bound(file);

    for (uint32_t i = 0; i < end; i++) {
        uint32_t owner = cgpu_work_key_of(&file->works[i]).owner;

        if (owner != 0 && cgpu_lock_holder(owner) == index) {
            cgpu_work_clear(&file->works[i]);
        }
    }
}
