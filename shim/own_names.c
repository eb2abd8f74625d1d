#include "own_names.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

/* The linker defines these: where this library begins, and its dynamic section. */
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden")));

/*
 * The address under TAG in the dynamic section. Some loaders leave addresses there as they are in
 * the file; others add the base.
 */
static uintptr_t
entry(ElfW(Sxword) tag)
{
    uintptr_t base = (uintptr_t)__ehdr_start;
    for (const ElfW(Dyn) *i = _DYNAMIC; i->d_tag != DT_NULL; i++) {
        if (i->d_tag == tag) {
            return i->d_un.d_ptr < base ? base + i->d_un.d_ptr : i->d_un.d_ptr;
        }
    }
    return 0;
}

bool
cgpu_own_names_open(struct cgpu_own_names *own)
{
    uintptr_t symbols = entry(DT_SYMTAB);
    const ElfW(Word) *hash = (const ElfW(Word) *)entry(DT_HASH);
    if (symbols == 0 || hash == NULL) {
        return false;
    }
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = symbols & ~(page - 1);
    own->symbols = (ElfW(Sym) *)symbols;
    own->count = hash[1]; /* as many chains as symbols */
    own->pages = (void *)first;
    own->pages_size = symbols + own->count * sizeof(ElfW(Sym)) - first;
    /*
     * These pages are read-only and private. The linker keeps them apart from code, so no page
     * loses PROT_EXEC.
     */
    return mprotect(own->pages, own->pages_size, PROT_READ | PROT_WRITE) == 0;
}

void
cgpu_own_names_hide(const struct cgpu_own_names *own, const void *function)
{
    uintptr_t value = (uintptr_t)function - (uintptr_t)__ehdr_start;
    for (size_t i = 1; i < own->count; i++) {
        ElfW(Sym) *symbol = &own->symbols[i];
        if (symbol->st_shndx != SHN_UNDEF && symbol->st_value == value) {
            symbol->st_value = 0; /* first: it is what loaders look at */
            symbol->st_shndx = SHN_UNDEF;
            return;
        }
    }
}

void
cgpu_own_names_close(const struct cgpu_own_names *own)
{
    mprotect(own->pages, own->pages_size, PROT_READ);
}
