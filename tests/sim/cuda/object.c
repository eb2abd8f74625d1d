/* Everything with a handle is in one hash table, so that a wrong handle is an error and not a
 * crash. */
#include <stdlib.h>

#include "sim.h"

enum { BUCKETS = 16384 };

static struct sim_object *buckets[BUCKETS];
static struct sim_object *newest; /* list of all, newest first */

static struct sim_object **
bucket_of(const void *handle)
{
    uint64_t hash = (uint64_t)(uintptr_t)handle * 0x9e3779b97f4a7c15ull;
    return &buckets[hash >> 50];
}

void *
sim_object_new(enum sim_kind kind, size_t size, struct sim_context *owner)
{
    struct sim_object *object = calloc(1, size);
    if (object == NULL) {
        return NULL;
    }
    struct sim_object **bucket = bucket_of(object);
    object->kind = kind;
    object->owner = owner;
    object->hash_next = *bucket;
    *bucket = object;
    object->next = newest;
    if (newest != NULL) {
        newest->previous = object;
    }
    newest = object;
    return object;
}

void *
sim_object_find(enum sim_kind kind, const void *handle)
{
    for (struct sim_object *i = *bucket_of(handle); i != NULL; i = i->hash_next) {
        if (i == handle) {
            return i->kind == kind ? i : NULL;
        }
    }
    return NULL;
}

void
sim_object_delete(void *handle)
{
    struct sim_object *object = handle;
    struct sim_object **at = bucket_of(object);
    while (*at != object) {
        at = &(*at)->hash_next;
    }
    *at = object->hash_next;
    if (object->next != NULL) {
        object->next->previous = object->previous;
    }
    if (object->previous != NULL) {
        object->previous->next = object->next;
    } else {
        newest = object->next;
    }
    free(object);
}

void *
sim_object_next(enum sim_kind kind, const void *after)
{
    struct sim_object *i = after == NULL ? newest : ((const struct sim_object *)after)->next;
    while (i != NULL && i->kind != kind) {
        i = i->next;
    }
    return i;
}
