/*
 * Inspects code before it is loaded: how large it can get, and whether it declares managed
 * variables.
 *
 * The program passes images without a length. Only their own headers show where they end, and the
 * driver trusts those too. Every offset is checked against what the enclosing header states.
 * Unknown parts are skipped, such as compressed members of fat binaries and members newer than
 * cgpu; their managed variables are refused when a program asks for their address.
 *
 * A cubin states what is to be allocated; PTX does so less exactly (ptx.c). Of a fat binary the
 * driver loads one member. So the largest size counts, and the smallest total of declared variables
 * among the members that can be read. `make gpu-check` compares what modules take with these
 * bounds.
 */
#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "entry/shim.h"
#include "memory/code/image.h"
#include "memory/code/ptx.h"

enum {
    FAT_WRAPPER = 0x466243b1,
    FAT_KIND_PTX = 1,
    FAT_KIND_ELF = 2,
    SYMBOL_MANAGED = 0x04, /* st_other of CUDA symbols */
    MAX_TEXT = 256 << 20,
    PACKED_GROWTH = 8 /* how much a compressed member grows that does not state its size */
};
#define FAT_MAGIC      0xba55ed50u
#define FAT_COMPRESSED 0xf000u /* one bit per method */
#define MAX_BYTES      (UINT64_C(1) << 32)

struct fat_wrapper {
    uint32_t magic, version;
    const void *data;
};

struct fat_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes; /* of the members */
};

struct fat_member {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t bytes;
    uint8_t unused[24];
    uint64_t flags;
    uint64_t zero, unpacked_bytes; /* where the header is long enough */
};

#define MEMBER_BYTES offsetof(struct fat_member, zero)

/*
 * The section with the names of the symbols in TABLE; its size is 0 if there is none. LIMIT: see
 * scan_elf.
 */
static Elf64_Shdr
names_of(const unsigned char *elf, uint64_t limit, const Elf64_Ehdr *header,
         const Elf64_Shdr *table)
{
    Elf64_Shdr names = {.sh_size = 0};
    if (table->sh_link < header->e_shnum) {
        memcpy(&names, elf + header->e_shoff + table->sh_link * sizeof(names), sizeof(names));
    }
    if (names.sh_offset > limit || names.sh_size > limit - names.sh_offset) {
        names.sh_size = 0;
    }
    return names;
}

static bool
is_malloc(const unsigned char *elf, const Elf64_Shdr *names, uint32_t at)
{
    static const char name[] = "malloc";
    return names->sh_size >= sizeof(name) && at <= names->sh_size - sizeof(name) &&
           memcmp(elf + names->sh_offset + at, name, sizeof(name)) == 0;
}

static void
scan_symbols(const unsigned char *elf, const Elf64_Shdr *table, const Elf64_Shdr *names,
             struct cgpu_image *image)
{
    for (uint64_t i = 0; i < table->sh_size / sizeof(Elf64_Sym); i++) {
        Elf64_Sym symbol;
        memcpy(&symbol, elf + table->sh_offset + i * sizeof(symbol), sizeof(symbol));
        if (ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT &&
            (symbol.st_other & SYMBOL_MANAGED) != 0) {
            image->managed = true;
        }
        if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_shndx == SHN_UNDEF) {
            image->calls = true;
            image->heap |= is_malloc(elf, names, symbol.st_name);
        }
    }
}

/* Whether SECTION holds variables in global memory. LIMIT: see scan_elf. */
static bool
has_variables(const unsigned char *elf, uint64_t limit, const Elf64_Ehdr *header,
              const Elf64_Shdr *section)
{
    static const char name[] = ".nv.global"; /* and ".nv.global.init" */
    Elf64_Shdr names;
    if (header->e_shstrndx >= header->e_shnum) {
        return false;
    }
    memcpy(&names, elf + header->e_shoff + header->e_shstrndx * sizeof(names), sizeof(names));
    return names.sh_offset <= limit && names.sh_size <= limit - names.sh_offset &&
           names.sh_size >= sizeof(name) && section->sh_name <= names.sh_size - sizeof(name) &&
           memcmp(elf + names.sh_offset + section->sh_name, name, sizeof(name) - 1) == 0;
}

/* Scan a cubin of at most LIMIT bytes, which states what is to be allocated. */
static void
scan_elf(const unsigned char *elf, uint64_t limit, struct cgpu_image *image)
{
    Elf64_Ehdr header;
    memcpy(&header, elf, sizeof(header));
    uint64_t sections = (uint64_t)header.e_shnum * sizeof(Elf64_Shdr);
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr) ||
        header.e_shoff > limit || sections > limit - header.e_shoff) {
        image->hidden = true;
        return;
    }
    for (uint64_t i = 0; i < header.e_shnum; i++) {
        Elf64_Shdr section;
        memcpy(&section, elf + header.e_shoff + i * sizeof(section), sizeof(section));
        if ((section.sh_flags & SHF_ALLOC) != 0) {
            cgpu_image_add(image, section.sh_size);
            if (has_variables(elf, limit, &header, &section)) {
                cgpu_image_add_variables(image, section.sh_size);
            }
        }
        if (section.sh_type == SHT_SYMTAB && section.sh_offset <= limit &&
            section.sh_size <= limit - section.sh_offset) {
            Elf64_Shdr names = names_of(elf, limit, &header, &section);
            scan_symbols(elf, &section, &names, image);
        }
    }
    cgpu_image_add(image, header.e_shoff + sections);
}

/* Scan a member. The largest one counts, because only one of them is loaded. */
static void
scan_member(const unsigned char *body, const struct fat_member *member, struct cgpu_image *image)
{
    struct cgpu_image own = {.bytes = 0};
    uint64_t growth = member->kind == FAT_KIND_ELF ? 1 : CGPU_PTX_GROWTH;
    if ((member->flags & FAT_COMPRESSED) != 0) {
        uint64_t unpacked = member->unpacked_bytes > member->bytes
                                ? member->unpacked_bytes
                                : cgpu_image_product(member->bytes, PACKED_GROWTH);
        cgpu_image_add(&own, cgpu_image_product(unpacked, growth));
        own.hidden = true;
    } else if (member->bytes < sizeof(Elf64_Ehdr)) {
        own.hidden = true;
    } else if (member->kind == FAT_KIND_ELF) {
        scan_elf(body, member->bytes, &own);
    } else if (member->kind == FAT_KIND_PTX) {
        cgpu_ptx_scan((const char *)body, member->bytes, &own);
    } else {
        cgpu_image_add(&own, cgpu_image_product(member->bytes, growth));
        own.hidden = true;
    }
    image->bytes = own.bytes > image->bytes ? own.bytes : image->bytes;
    if (!own.hidden && (!image->read || own.variables < image->variables)) {
        image->read = true;
        image->variables = own.variables;
    }
    image->hidden |= own.hidden;
    image->managed |= own.managed;
    image->calls |= own.calls || own.hidden;
    image->heap |= own.heap;
}

static void
scan_fat(const unsigned char *fat, uint64_t limit, struct cgpu_image *image)
{
    struct fat_header header;
    memcpy(&header, fat, sizeof(header));
    if (header.header_bytes > limit || header.bytes > limit - header.header_bytes) {
        image->hidden = true;
        return;
    }
    uint64_t end = header.header_bytes + header.bytes;
    uint64_t at = header.header_bytes;
    while (end - at > MEMBER_BYTES) {
        struct fat_member member = {.kind = 0};
        memcpy(&member, fat + at, MEMBER_BYTES);
        if (member.header_bytes < MEMBER_BYTES || member.header_bytes > end - at ||
            member.bytes > end - at - member.header_bytes) {
            image->hidden = true;
            return;
        }
        if (member.header_bytes >= sizeof(member)) {
            memcpy(&member, fat + at, sizeof(member));
        }
        scan_member(fat + at + member.header_bytes, &member, image);
        at += member.header_bytes + member.bytes;
    }
}

/*
 * The first four bytes as a number. Shorter text ends with a NUL, which no known number contains.
 */
static uint32_t
magic_of(const unsigned char *data, uint64_t limit)
{
    uint32_t magic = 0;
    for (unsigned int i = 0; i < sizeof(magic) && i < limit && data[i] != 0; i++) {
        magic |= (uint32_t)data[i] << 8 * i;
    }
    return magic;
}

/* Scan DATA of at most LIMIT bytes, or of as many as its headers state. */
static void
scan_any(const void *data, uint64_t limit, struct cgpu_image *image)
{
    uint32_t magic = magic_of(data, limit);
    if (magic == FAT_MAGIC && limit >= sizeof(struct fat_header)) {
        scan_fat(data, limit, image);
    } else if (memcmp(&magic, ELFMAG, SELFMAG) == 0 && limit >= sizeof(Elf64_Ehdr)) {
        scan_elf(data, limit, image);
    } else {
        cgpu_ptx_scan(data, limit < MAX_TEXT ? limit : MAX_TEXT, image);
    }
}

void
cgpu_image_scan(const void *data, struct cgpu_image *image)
{
    struct fat_wrapper wrapper;
    *image = (struct cgpu_image){.bytes = 0};
    if (data != NULL && magic_of(data, sizeof(uint32_t)) == FAT_WRAPPER) {
        memcpy(&wrapper, data, sizeof(wrapper));
        data = wrapper.data;
    }
    if (data != NULL) {
        scan_any(data, MAX_BYTES, image);
    }
    image->calls |= image->hidden;
}

/* Read the first SIZE bytes of FD, or as many as there are. */
static size_t
read_whole(int fd, void *data, size_t size)
{
    size_t done = 0;
    ssize_t got = 1;
    while (done < size && got > 0) {
        got = pread(fd, (char *)data + done, size - done, (off_t)done);
        done += got > 0 ? (size_t)got : 0;
    }
    return done;
}

/*
 * Scan a copy of the file: if the file itself were mapped and somebody truncated it, reading it
 * would kill the program.
 */
static void
scan_copy(int fd, size_t size, struct cgpu_image *image)
{
    void *data = mmap(NULL, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
        return;
    }
    *image = (struct cgpu_image){.bytes = 0};
    scan_any(data, read_whole(fd, data, size), image);
    munmap(data, size);
}

void
cgpu_image_scan_file(const char *path, struct cgpu_image *image)
{
    struct stat file;
    *image = (struct cgpu_image){.bytes = CGPU_CODE_PLAUSIBLE, .hidden = true};
    int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    if (fd >= 0 && fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && file.st_size > 0 &&
        (uint64_t)file.st_size <= MAX_BYTES) {
        scan_copy(fd, (size_t)file.st_size, image);
    }
    if (fd >= 0) {
        close(fd);
    }
    image->calls |= image->hidden;
}
