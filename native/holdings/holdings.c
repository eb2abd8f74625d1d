/*
 * Holdings: open addressing with linear probing in sixteen shards, each with its own lock.
 *
 * When an entry is removed, later ones move back; no mark is left in its place. So a table in which
 * millions of entries came and went is as fast as a fresh one. A shard has no memory before its
 * first entry, starts with one page, and doubles when it is three quarters full.
 */
#include "holdings/holdings.h"

#include <stdbool.h>
#include <sys/mman.h>

#include "mutex.h"

enum { SHARD_BITS = 4, SHARDS = 1 << SHARD_BITS, FIRST_CAPACITY = 64 };

struct shard {
    struct cgpu_mutex mutex;
    uint32_t count;
    size_t capacity;            /* a power of two, or 0 */
    struct cgpu_holding *rows;  /* its kind field is the kind plus 1; 0: free, as in fresh memory */
} __attribute__((aligned(64))); /* threads on two shards do not share a cache line */

struct cgpu_holdings {
    struct shard shards[SHARDS];
};

_Static_assert(sizeof(struct cgpu_holding) * FIRST_CAPACITY <= 4096, "one page");

/* Handles are addresses: their low bits are equal, and their high bits nearly so. */
static uint64_t
hash(uint32_t kind, uint64_t handle)
{
    uint64_t h = (handle ^ (uint64_t)kind << 56) * 0x9e3779b97f4a7c15u;

    h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
    return h ^ h >> 32;
}

static struct shard *
shard_of(struct cgpu_holdings *holdings, uint64_t h)
{
    return &holdings->shards[h >> (64 - SHARD_BITS)];
}

/* The row of the entry, or the free row that it would take. The shard must have memory. */
static size_t
seek(const struct shard *shard, uint64_t h, uint32_t kind, uint64_t handle)
{
    size_t at = h & (shard->capacity - 1);

    while (shard->rows[at].kind != 0 &&
           (shard->rows[at].kind != kind + 1 || shard->rows[at].handle != handle)) {
        at = (at + 1) & (shard->capacity - 1);
    }
    return at;
}

static struct cgpu_holding *
look_up(const struct shard *shard, uint64_t h, uint32_t kind, uint64_t handle)
{
    struct cgpu_holding *found;

    if (shard->count == 0) {
        return NULL;
    }
    found = &shard->rows[seek(shard, h, kind, handle)];
    return found->kind != 0 ? found : NULL;
}

static void
put(struct shard *shard, uint64_t h, const struct cgpu_holding *holding)
{
    struct cgpu_holding *row = &shard->rows[seek(shard, h, holding->kind, holding->handle)];

    *row = *holding;
    row->kind = holding->kind + 1;
}

static void
copy_out(struct cgpu_holding *out, const struct cgpu_holding *row)
{
    *out = *row;
    out->kind = row->kind - 1;
}

static bool
grow(struct shard *shard)
{
    struct shard larger = {.capacity = shard->capacity == 0 ? FIRST_CAPACITY : shard->capacity * 2};
    struct cgpu_holding holding;

    larger.rows = mmap(NULL, larger.capacity * sizeof *larger.rows, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (larger.rows == MAP_FAILED) {
        return false;
    }
    for (size_t i = 0; i < shard->capacity; i++) {
        if (shard->rows[i].kind != 0) {
            copy_out(&holding, &shard->rows[i]);
            put(&larger, hash(holding.kind, holding.handle), &holding);
        }
    }
    if (shard->capacity != 0) {
        munmap(shard->rows, shard->capacity * sizeof *shard->rows);
    }
    shard->rows = larger.rows;
    shard->capacity = larger.capacity;
    return true;
}

/* Close the gap: move back each following entry that may fill it, up to the next free row. */
static void
erase(struct shard *shard, size_t gap)
{
    size_t mask = shard->capacity - 1;

    for (size_t next = (gap + 1) & mask; shard->rows[next].kind != 0; next = (next + 1) & mask) {
        const struct cgpu_holding *entry = &shard->rows[next];
        size_t home = hash(entry->kind - 1, entry->handle) & mask;

        /* only if the gap is between its home and its row, seen round the circle */
        if (((next - home) & mask) >= ((next - gap) & mask)) {
            shard->rows[gap] = *entry;
            gap = next;
        }
    }
    shard->rows[gap] = (struct cgpu_holding){0};
    shard->count -= 1;
}

int
cgpu_holdings_create(struct cgpu_holdings **out)
{
    struct cgpu_holdings *holdings =
        mmap(NULL, sizeof *holdings, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    *out = holdings == MAP_FAILED ? NULL : holdings;
    return holdings == MAP_FAILED ? CGPU_EIO : CGPU_OK;
}

/*
 * Free the table without taking a lock: in a forked child, threads that do not exist there may hold
 * some.
 */
void
cgpu_holdings_destroy(struct cgpu_holdings *holdings)
{
    if (holdings == NULL) {
        return;
    }
    for (int i = 0; i < SHARDS; i++) {
        const struct shard *shard = &holdings->shards[i];

        if (shard->capacity != 0) {
            munmap(shard->rows, shard->capacity * sizeof *shard->rows);
        }
    }
    munmap(holdings, sizeof *holdings);
}

static int
insert_locked(struct shard *shard, uint64_t h, const struct cgpu_holding *holding)
{
    if (look_up(shard, h, holding->kind, holding->handle) != NULL) {
        return CGPU_EINVAL;
    }
    if (shard->count + 1 > shard->capacity / 4 * 3 && !grow(shard)) {
        return CGPU_EIO;
    }
    put(shard, h, holding);
    shard->count += 1;
    return CGPU_OK;
}

int
cgpu_holdings_insert(struct cgpu_holdings *holdings, const struct cgpu_holding *holding)
{
    uint64_t h = hash(holding->kind, holding->handle);
    struct shard *shard = shard_of(holdings, h);
    int status;

    if (holding->kind == UINT32_MAX) {
        return CGPU_EINVAL; /* kind + 1 would read as free */
    }
    cgpu_mutex_lock(&shard->mutex);
    status = insert_locked(shard, h, holding);
    cgpu_mutex_unlock(&shard->mutex);
    return status;
}

static int
find(struct cgpu_holdings *holdings, uint32_t kind, uint64_t handle, struct cgpu_holding *out,
     bool taken)
{
    uint64_t h = hash(kind, handle);
    struct shard *shard = shard_of(holdings, h);
    const struct cgpu_holding *found;

    cgpu_mutex_lock(&shard->mutex);
    found = look_up(shard, h, kind, handle);
    if (found != NULL) {
        copy_out(out, found);
    }
    if (found != NULL && taken) {
        erase(shard, (size_t)(found - shard->rows));
    }
    cgpu_mutex_unlock(&shard->mutex);
    return found != NULL ? CGPU_OK : CGPU_ENOTFOUND;
}

int
cgpu_holdings_find(struct cgpu_holdings *holdings, uint32_t kind, uint64_t handle,
                   struct cgpu_holding *out)
{
    return find(holdings, kind, handle, out, false);
}

int
cgpu_holdings_take(struct cgpu_holdings *holdings, uint32_t kind, uint64_t handle,
                   struct cgpu_holding *out)
{
    return find(holdings, kind, handle, out, true);
}

int
cgpu_holdings_update(struct cgpu_holdings *holdings, const struct cgpu_holding *holding)
{
    uint64_t h = hash(holding->kind, holding->handle);
    struct shard *shard = shard_of(holdings, h);
    struct cgpu_holding *found;

    cgpu_mutex_lock(&shard->mutex);
    found = look_up(shard, h, holding->kind, holding->handle);
    if (found != NULL) {
        found->bytes = holding->bytes;
        found->extra = holding->extra;
    }
    cgpu_mutex_unlock(&shard->mutex);
    return found != NULL ? CGPU_OK : CGPU_ENOTFOUND;
}

static bool
take_owned_locked(struct shard *shard, uint64_t owner, struct cgpu_holding *out)
{
    for (size_t i = 0; shard->count != 0 && i < shard->capacity; i++) {
        if (shard->rows[i].kind != 0 && shard->rows[i].owner == owner) {
            copy_out(out, &shard->rows[i]);
            erase(shard, i);
            return true;
        }
    }
    return false;
}

int
cgpu_holdings_take_owned(struct cgpu_holdings *holdings, uint64_t owner, struct cgpu_holding *out)
{
    bool found = false;

    for (int i = 0; owner != 0 && !found && i < SHARDS; i++) {
        struct shard *shard = &holdings->shards[i];

        cgpu_mutex_lock(&shard->mutex);
        found = take_owned_locked(shard, owner, out);
        cgpu_mutex_unlock(&shard->mutex);
    }
    return found ? CGPU_OK : CGPU_ENOTFOUND;
}

/*
 * Remove OWNER's entries from SHARD. Erasing one may move a later entry to its row, so the row is
 * read again. It may also move another owner's entry from the start of the shard to its end.
 */
static void
drop_owned_locked(struct shard *shard, uint64_t owner,
                  void (*visit)(const struct cgpu_holding *, void *), void *argument)
{
    struct cgpu_holding holding;

    for (size_t i = 0; shard->count != 0 && i < shard->capacity; i++) {
        while (shard->rows[i].kind != 0 && shard->rows[i].owner == owner) {
            copy_out(&holding, &shard->rows[i]);
            erase(shard, i);
            visit(&holding, argument);
        }
    }
}

void
cgpu_holdings_drop_owned(struct cgpu_holdings *holdings, uint64_t owner,
                         void (*visit)(const struct cgpu_holding *, void *), void *argument)
{
    for (int i = 0; owner != 0 && i < SHARDS; i++) {
        struct shard *shard = &holdings->shards[i];

        cgpu_mutex_lock(&shard->mutex);
        drop_owned_locked(shard, owner, visit, argument);
        cgpu_mutex_unlock(&shard->mutex);
    }
}

size_t
cgpu_holdings_list(struct cgpu_holdings *holdings, uint32_t kind, struct cgpu_holding *out,
                   size_t room)
{
    size_t count = 0;

    for (int i = 0; i < SHARDS; i++) {
        struct shard *shard = &holdings->shards[i];

        cgpu_mutex_lock(&shard->mutex);
        for (size_t row = 0; shard->count != 0 && row < shard->capacity; row++) {
            if (shard->rows[row].kind != kind + 1) {
                continue;
            }
            if (count < room) {
                copy_out(&out[count], &shard->rows[row]);
            }
            count += 1;
        }
        cgpu_mutex_unlock(&shard->mutex);
    }
    return count;
}

size_t
cgpu_holdings_count(struct cgpu_holdings *holdings)
{
    size_t count = 0;

    for (int i = 0; i < SHARDS; i++) {
        struct shard *shard = &holdings->shards[i];

        cgpu_mutex_lock(&shard->mutex);
        count += shard->count;
        cgpu_mutex_unlock(&shard->mutex);
    }
    return count;
}
