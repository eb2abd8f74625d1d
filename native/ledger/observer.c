/* Reading a ledger without changing it: see observer.h. */
#include "ledger/observer.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

#include "clock.h"
#include "ledger/attachment.h"
#include "ledger/sharing.h"
#include "ledger/slot.h"

enum { CHUNK_SLOTS = 8 }; /* 2.5 KiB of a stack that may be small */

/*
 * One read of a ledger may spend ONCE_NS, plus ASK_NS for each question whether a slot's process
 * lives. When that is spent, it asks no more questions, and no other read asks any for REST_TIMES
 * as long as this one took. For each question the kernel walks all locks on the file, under a lock
 * of its own. That takes 12 us for the thousand locks that processes hold for their slots, but a
 * container may hold any number of locks.
 */
#define ASK_NS       UINT64_C(20000)
#define ONCE_NS      UINT64_C(2000000)
#define REST_MOST_NS UINT64_C(60000000000)
enum { REST_TIMES = 1000 };

/* One read: which questions it has asked, what it has spent, and where it reports living slots. */
struct look {
    struct cgpu_ledger *ledger;
    uint32_t gpu; /* CGPU_MAX_GPUS: any */
    int fd;
    uint64_t spent_ns;
    uint32_t asked;
    uint32_t unasked;
    void (*found)(void *to, const struct cgpu_ledger_slot *slot, uint32_t index);
    void (*shares)(void *to, const struct cgpu_share *share);
    void *to;
    struct cgpu_survey *survey;        /* NULL: the sums of shared memory are not wanted */
    uint8_t living[CGPU_LEDGER_SLOTS]; /* 1 for each slot that was found living */
};

/* A + B, or the largest number if that is more: amounts in a hostile file may exceed 64 bits. */
static uint64_t
add(uint64_t a, uint64_t b)
{
    return a + b < a ? UINT64_MAX : a + b;
}

static uint64_t
used_by(const struct cgpu_ledger_slot *slot, uint32_t gpu)
{
    uint64_t sum = 0;

    if (gpu < CGPU_MAX_GPUS) {
        return slot->used[gpu];
    }
    for (int i = 0; i < CGPU_MAX_GPUS; i++) {
        sum = add(sum, slot->used[i]);
    }
    return sum;
}

static void
rest(struct look *look)
{
    uint64_t ns =
        look->spent_ns < REST_MOST_NS / REST_TIMES ? look->spent_ns * REST_TIMES : REST_MOST_NS;

    cgpu_ledger_rest(look->ledger, cgpu_clock_now() + ns);
}

/* Whether the process of slot INDEX is dead. *NS: the processor time that the question took. */
static bool
ask(const struct look *look, uint32_t index, uint64_t *ns)
{
    uint64_t begun = cgpu_clock_spent();
    bool dead = cgpu_slot_dead(look->fd, index);

    *ns = cgpu_clock_spent() - begun;
    return dead;
}

static bool
is_too_much(const struct look *look, uint64_t spent_ns)
{
    return spent_ns > ONCE_NS + look->asked * ASK_NS;
}

/*
 * Whether the process of slot INDEX lives. If the kernel is not asked, the process counts as
 * living, so that its memory stays counted.
 */
static bool
lives(struct look *look, uint32_t index)
{
    struct cgpu_ledger *ledger = look->ledger;
    uint64_t ns;
    uint64_t again_ns;
    bool dead;

    if (ledger->file != NULL && index == ledger->slot) {
        return true;
    }
    if (cgpu_ledger_rests(ledger) != 0) {
        look->unasked += 1;
        return true;
    }
    dead = ask(look, index, &ns);
    look->asked += 1;
    if (is_too_much(look, look->spent_ns + ns)) {
        /*
         * ask again: locks take the same time twice, but an interrupt or another virtual machine
         * does not
         */
        dead = ask(look, index, &again_ns);
        ns = 2 * (again_ns < ns ? again_ns : ns);
    }
    look->spent_ns += ns;
    if (is_too_much(look, look->spent_ns)) {
        rest(look);
    }
    return !dead;
}

/* Report the living slots, from a copy of the file: it does not change in between. */
static int
walk(struct look *look)
{
    const struct cgpu_ledger_file *file = look->ledger->file;
    struct cgpu_ledger_slot slots[CHUNK_SLOTS];

    for (uint32_t first = 0; first < CGPU_LEDGER_SLOTS; first += CHUNK_SLOTS) {
        off_t offset = (off_t)(offsetof(struct cgpu_ledger_file, slots) + first * sizeof *slots);

        if (file != NULL && first >= cgpu_slot_bound(file)) {
            break;
        }
        if (pread(look->fd, slots, sizeof slots, offset) != sizeof slots) {
            return CGPU_EFORMAT;
        }
        for (uint32_t i = 0; i < CHUNK_SLOTS; i++) {
            if (slots[i].taken != 0 && used_by(&slots[i], look->gpu) != 0 &&
                lives(look, first + i)) {
                look->found(look->to, &slots[i], first + i);
                look->living[first + i] = 1;
            }
        }
    }
    return CGPU_OK;
}

/*
 * A descriptor of the file. An observer keeps one open: each time a descriptor of a file is closed,
 * the kernel walks all locks on the file.
 */
static int
borrow(const struct cgpu_ledger *ledger)
{
    return ledger->observing ? ledger->kept : cgpu_ledger_reopen(ledger);
}

static void
give_back(const struct cgpu_ledger *ledger, int fd)
{
    int saved = errno;

    if (!ledger->observing) {
        close(fd);
    }
    errno = saved;
}

static int
walk_file(struct look *look)
{
    struct cgpu_ledger *ledger = look->ledger;
    uint64_t until;
    int status;

    look->fd = borrow(ledger);
    if (look->fd < 0) {
        return CGPU_EIO;
    }
    until = cgpu_ledger_rests(ledger);
    if (until != 0 && until <= cgpu_clock_now()) {
        cgpu_ledger_rest(ledger, 0);
    }
    status = walk(look);
    if (status == CGPU_OK) {
        cgpu_sharing_survey(look->fd, look->gpu, look->living, look->shares, look->to,
                            look->survey);
    }
    give_back(ledger, look->fd);
    return status;
}

struct sum {
    uint32_t gpu;
    uint64_t bytes;
};

static void
add_up(void *to, const struct cgpu_ledger_slot *slot, uint32_t index)
{
    struct sum *sum = to;

    (void)index;
    sum->bytes = add(sum->bytes, used_by(slot, sum->gpu));
}

static void
share_in_sum(void *to, const struct cgpu_share *share)
{
    struct sum *sum = to;

    sum->bytes = add(sum->bytes, share->owes);
}

uint64_t
cgpu_observer_used(struct cgpu_ledger *ledger, uint32_t gpu)
{
    struct sum sum = {.gpu = gpu};
    struct look look = {
        .ledger = ledger, .gpu = gpu, .found = add_up, .shares = share_in_sum, .to = &sum};

    if (ledger == NULL || !ledger->observing || gpu >= CGPU_MAX_GPUS ||
        walk_file(&look) != CGPU_OK) {
        return 0;
    }
    return sum.bytes;
}

/* The 8 bytes at OFFSET of the file; 0 where they cannot be read. */
static uint64_t
read_word(const struct cgpu_ledger *ledger, size_t offset)
{
    uint64_t word = 0;

    if (ledger == NULL || !ledger->observing ||
        pread(ledger->kept, &word, sizeof word, (off_t)offset) != sizeof word) {
        return 0;
    }
    return word;
}

uint64_t
cgpu_observer_total(const struct cgpu_ledger *ledger, uint32_t gpu)
{
    return gpu < CGPU_MAX_GPUS
               ? read_word(ledger, offsetof(struct cgpu_ledger_file, gpus[gpu].used))
               : 0;
}

uint64_t
cgpu_observer_refused(const struct cgpu_ledger *ledger, uint32_t gpu)
{
    return gpu < CGPU_MAX_GPUS
               ? read_word(ledger, offsetof(struct cgpu_ledger_file, gpus[gpu].refused))
               : 0;
}

struct list {
    uint32_t gpu;
    struct cgpu_process *out;
    size_t capacity;
    size_t count;
};

static void
enlist(void *to, const struct cgpu_ledger_slot *slot, uint32_t index)
{
    struct list *list = to;

    if (list->count < list->capacity) {
        list->out[list->count] = (struct cgpu_process){
            .pid = slot->pid,
            .slot = index,
            .used_bytes = used_by(slot, list->gpu),
        };
    }
    list->count += 1;
}

static void
share_in_list(void *to, const struct cgpu_share *share)
{
    struct list *list = to;
    size_t count = list->count < list->capacity ? list->count : list->capacity;

    for (size_t i = 0; i < count; i++) {
        if (list->out[i].slot == share->slot) {
            list->out[i].used_bytes = add(list->out[i].used_bytes, share->owes);
        }
    }
}

static bool
is_open(const struct cgpu_ledger *ledger)
{
    return ledger != NULL && (ledger->file != NULL || ledger->observing);
}

int
cgpu_ledger_processes(struct cgpu_ledger *ledger, uint32_t gpu, struct cgpu_process *out,
                      size_t capacity, size_t *count_out)
{
    struct list list = {.gpu = gpu, .out = out, .capacity = capacity};
    struct look look = {
        .ledger = ledger, .gpu = gpu, .found = enlist, .shares = share_in_list, .to = &list};
    int status;

    if (!is_open(ledger) || gpu > CGPU_MAX_GPUS || (out == NULL && capacity > 0) ||
        count_out == NULL) {
        return CGPU_EINVAL;
    }
    status = walk_file(&look);
    *count_out = status == CGPU_OK ? list.count : 0;
    return status;
}

static void
take_down(void *to, const struct cgpu_ledger_slot *slot, uint32_t index)
{
    struct cgpu_survey *survey = to;
    struct cgpu_holder *holder = &survey->holders[survey->count++];

    holder->pid = slot->pid;
    holder->slot = index;
    for (int gpu = 0; gpu < CGPU_MAX_GPUS; gpu++) {
        holder->used_bytes[gpu] = slot->used[gpu];
        holder->shared_bytes[gpu] = 0;
    }
}

static void
share_in_survey(void *to, const struct cgpu_share *share)
{
    struct cgpu_survey *survey = to;
    struct cgpu_holder *holder;
    uint32_t low = 0, high = survey->count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (survey->holders[middle].slot < share->slot) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    holder = survey->holders + low;
    if (low < survey->count && holder->slot == share->slot) {
        holder->used_bytes[share->gpu] = add(holder->used_bytes[share->gpu], share->owes);
        holder->shared_bytes[share->gpu] = add(holder->shared_bytes[share->gpu], share->covered);
    }
}

int
cgpu_ledger_survey(struct cgpu_ledger *ledger, struct cgpu_survey *out)
{
    struct look look = {.ledger = ledger,
                        .gpu = CGPU_MAX_GPUS,
                        .found = take_down,
                        .shares = share_in_survey,
                        .to = out,
                        .survey = out};
    int status;

    if (!is_open(ledger) || out == NULL) {
        return CGPU_EINVAL;
    }
    out->count = 0;
    status = walk_file(&look);
    out->asked = look.asked;
    out->unasked = look.unasked;
    return status;
}

/* Relaxed: threads may share an observer, but nothing else depends on this time. */
uint64_t
cgpu_ledger_rests(const struct cgpu_ledger *ledger)
{
    return ledger != NULL ? __atomic_load_n(&ledger->rests_until, __ATOMIC_RELAXED) : 0;
}

void
cgpu_ledger_rest(struct cgpu_ledger *ledger, uint64_t until)
{
    if (ledger != NULL) {
        __atomic_store_n(&ledger->rests_until, until, __ATOMIC_RELAXED);
    }
}
