/*
 * Objects: memory shared by several processes. A reference is a shared file lock on the object's
 * byte, held through the process's own file description or through an exported descriptor's, so
 * that the kernel drops it with its last holder; the contents are a region of the machine file.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "state.h"

/* An exported descriptor is the machine file, with the object's number in its file position. */
#define EXPORT_POSITION (1ll << 40) /* below the largest position of ext4 */

static uint64_t
page_round(uint64_t bytes)
{
    return (bytes + 0xffff) & ~(uint64_t)0xffff;
}

static void
drop(struct cgpu_machine *machine, struct state_object *object)
{
    object->in_use = 0;
    fallocate(machine->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)object->offset,
              (off_t)page_round(object->bytes));
}

void
cgpu_machine_reap_objects(struct cgpu_machine *machine)
{
    for (uint32_t i = 0; i < machine->state->object_high; i++) {
        struct state_object *object = &machine->state->objects[i];
        if (object->in_use && machine->references[i] == 0 &&
            !cgpu_machine_byte_is_locked(machine->fd, STATE_OBJECT_BYTE + i)) {
            drop(machine, object);
        }
    }
}

uint64_t
cgpu_machine_paid_by(struct cgpu_machine *machine, uint32_t gpu, uint32_t slot)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < machine->state->object_high; i++) {
        struct state_object *object = &machine->state->objects[i];
        if (object->in_use && object->gpu == gpu && object->payer == slot &&
            object->payer_tenancy == machine->state->processes[slot].tenancy) {
            sum += object->bytes;
        }
    }
    return sum;
}

/* The lowest offset behind which BYTES are free: after the end of some object, or at the start. */
static uint64_t
find_offset(struct state *state, uint64_t bytes)
{
    uint64_t offset = STATE_DATA_OFFSET;
    for (uint32_t i = 0; i < state->object_high;) {
        struct state_object *object = &state->objects[i];
        uint64_t end = object->offset + page_round(object->bytes);
        if (object->in_use && offset < end && object->offset < offset + page_round(bytes)) {
            offset = end;
            i = 0;
            continue;
        }
        i++;
    }
    return offset;
}

static int
put(struct cgpu_machine *machine, struct state_object *object, uint64_t bytes)
{
    struct stat status;
    uint64_t offset = find_offset(machine->state, bytes);
    uint64_t end = offset + page_round(bytes);
    if (fstat(machine->fd, &status) != 0 ||
        ((uint64_t)status.st_size < end && ftruncate(machine->fd, (off_t)end) != 0)) {
        return CGPU_MACHINE_ENOMEMORY;
    }
    object->offset = offset;
    object->bytes = bytes;
    return CGPU_MACHINE_OK;
}

static int
create_locked(struct cgpu_machine *machine, uint32_t gpu, uint64_t bytes, uint32_t number,
              int convert)
{
    struct state *state = machine->state;
    struct state_object *object = &state->objects[number];
    if ((!convert && cgpu_machine_reserve(machine, gpu, bytes) != CGPU_MACHINE_OK) ||
        put(machine, object, bytes) != CGPU_MACHINE_OK) {
        return CGPU_MACHINE_ENOMEMORY;
    }
    if (convert) {
        state->processes[machine->slot].used_bytes[gpu] -= bytes;
    }
    cgpu_machine_file_lock(machine->fd, STATE_OBJECT_BYTE + number, F_RDLCK, 0);
    object->gpu = gpu;
    object->payer = (uint32_t)machine->slot;
    object->payer_tenancy = state->processes[machine->slot].tenancy;
    object->tag = ++state->next_tag;
    object->in_use = 1;
    state->object_high = state->object_high > number ? state->object_high : number + 1;
    machine->references[number] = 1;
    return CGPU_MACHINE_OK;
}

static int
create(struct cgpu_machine *machine, uint32_t index, uint64_t bytes, uint32_t *object, int convert)
{
    if (index >= machine->visible_count || machine->slot < 0) {
        return CGPU_MACHINE_EINVAL;
    }
    int status = CGPU_MACHINE_EFULL;
    cgpu_machine_lock(machine);
    for (uint32_t i = 0; i < STATE_OBJECTS; i++) {
        if (!machine->state->objects[i].in_use) {
            *object = i;
            status = create_locked(machine, machine->visible[index], bytes, i, convert);
            break;
        }
    }
    cgpu_machine_unlock(machine);
    return status;
}

int
cgpu_machine_object_create(struct cgpu_machine *machine, uint32_t index, uint64_t bytes,
                           uint32_t *object)
{
    return create(machine, index, bytes, object, 0);
}

int
cgpu_machine_object_convert(struct cgpu_machine *machine, uint32_t index, uint64_t bytes,
                            uint32_t *object)
{
    return create(machine, index, bytes, object, 1);
}

int
cgpu_machine_object_is_held(struct cgpu_machine *machine, uint32_t object)
{
    return object < STATE_OBJECTS && machine->references[object] > 0;
}

int
cgpu_machine_object_retain(struct cgpu_machine *machine, uint32_t object)
{
    int status = CGPU_MACHINE_EINVAL;
    cgpu_machine_lock(machine);
    if (object < STATE_OBJECTS && machine->state->objects[object].in_use) {
        cgpu_machine_file_lock(machine->fd, STATE_OBJECT_BYTE + object, F_RDLCK, 0);
        machine->references[object]++;
        status = CGPU_MACHINE_OK;
    }
    cgpu_machine_unlock(machine);
    return status;
}

void
cgpu_machine_object_release(struct cgpu_machine *machine, uint32_t object)
{
    cgpu_machine_lock(machine);
    if (machine->references[object] > 0 && --machine->references[object] == 0) {
        cgpu_machine_file_lock(machine->fd, STATE_OBJECT_BYTE + object, F_UNLCK, 0);
        cgpu_machine_reap_objects(machine);
    }
    cgpu_machine_unlock(machine);
}

void *
cgpu_machine_object_map(struct cgpu_machine *machine, uint32_t object, void *address,
                        uint64_t offset, uint64_t bytes)
{
    int flags = MAP_SHARED | (address == NULL ? 0 : MAP_FIXED);
    return mmap(address, bytes, PROT_READ | PROT_WRITE, flags, machine->map_fd,
                (off_t)(machine->state->objects[object].offset + offset));
}

uint64_t
cgpu_machine_object_bytes(struct cgpu_machine *machine, uint32_t object)
{
    return machine->state->objects[object].bytes;
}

uint64_t
cgpu_machine_object_tag(struct cgpu_machine *machine, uint32_t object)
{
    return machine->state->objects[object].tag;
}

int
cgpu_machine_object_gpu(struct cgpu_machine *machine, uint32_t object, uint32_t *index)
{
    for (uint32_t i = 0; i < machine->visible_count; i++) {
        if (machine->visible[i] == machine->state->objects[object].gpu) {
            *index = i;
            return CGPU_MACHINE_OK;
        }
    }
    return CGPU_MACHINE_EINVAL;
}

int
cgpu_machine_object_export(struct cgpu_machine *machine, uint32_t object)
{
    int fd = cgpu_machine_file_open(machine->path);
    if (fd >= 0 && lseek(fd, EXPORT_POSITION + object, SEEK_SET) < 0) {
        close(fd);
        return -1;
    }
    if (fd >= 0) {
        cgpu_machine_file_lock(fd, STATE_OBJECT_BYTE + object, F_RDLCK, 0);
    }
    return fd;
}

int
cgpu_machine_object_import(struct cgpu_machine *machine, int fd, uint32_t *object)
{
    struct stat theirs, ours;
    off_t position = lseek(fd, 0, SEEK_CUR);
    if (fstat(fd, &theirs) != 0 || fstat(machine->fd, &ours) != 0 || theirs.st_ino != ours.st_ino ||
        theirs.st_dev != ours.st_dev || position < EXPORT_POSITION ||
        position >= EXPORT_POSITION + STATE_OBJECTS) {
        return CGPU_MACHINE_EINVAL;
    }
    *object = (uint32_t)(position - EXPORT_POSITION);
    return cgpu_machine_object_retain(machine, *object);
}
