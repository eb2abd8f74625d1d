/* What a module's image contains: PTX text, a cubin (ELF), or a fat binary of those. */
#define _GNU_SOURCE
#include <ctype.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { FAT_WRAPPER = 0x466243b1, FAT_KIND_PTX = 1, FAT_KIND_ELF = 2 };
enum { CUBIN_FIRST = 1 << 16 };                      /* above any architecture */
enum { SYMBOL_ENTRY = 0x10, SYMBOL_MANAGED = 0x04 }; /* st_other of CUDA symbols */

#define FAT_MAGIC      0xba55ed50u
#define FAT_COMPRESSED 0x2000u

struct fat_wrapper {
    uint32_t magic, version;
    const void *data, *unused;
};

struct fat_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes;
};

struct fat_entry {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t bytes;
    uint32_t compressed_bytes, reserved0;
    uint16_t minor, major;
    uint32_t arch, name_offset, name_bytes;
    uint64_t flags;
};

static void
add_kernel(struct sim_image *image, const char *name, size_t length)
{
    size_t count = image->kernel_count + 1;
    image->kernels = realloc(image->kernels, count * sizeof(*image->kernels));
    image->kernels[image->kernel_count++] = strndup(name, length);
}

static void
add_global(struct sim_image *image, const char *name, size_t length, uint64_t bytes, int managed)
{
    size_t count = image->global_count + 1;
    image->globals = realloc(image->globals, count * sizeof(*image->globals));
    image->globals[image->global_count++] =
        (struct sim_global){strndup(name, length), bytes, managed};
}

static int
is_kernel(const Elf64_Sym *symbol)
{
    return ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && (symbol->st_other & SYMBOL_ENTRY) != 0;
}

static void
read_symbols(const char *data, const Elf64_Shdr *sections, const Elf64_Shdr *table,
             struct sim_image *image)
{
    const char *names = data + sections[table->sh_link].sh_offset;
    const Elf64_Sym *symbols = (const void *)(data + table->sh_offset);
    for (uint64_t i = 0; i < table->sh_size / sizeof *symbols; i++) {
        const char *name = names + symbols[i].st_name;
        int is_outside =
            ELF64_ST_TYPE(symbols[i].st_info) == STT_FUNC && symbols[i].st_shndx == SHN_UNDEF;
        image->calls |= is_outside;
        image->heap |= is_outside && strcmp(name, "malloc") == 0;
        if (is_kernel(&symbols[i])) {
            add_kernel(image, name, strlen(name));
        } else if (ELF64_ST_TYPE(symbols[i].st_info) == STT_OBJECT && symbols[i].st_size > 0 &&
                   ELF64_ST_BIND(symbols[i].st_info) == STB_GLOBAL) {
            int managed = (symbols[i].st_other & SYMBOL_MANAGED) != 0;
            add_global(image, name, strlen(name), symbols[i].st_size, managed);
        }
    }
}

/* The caller gives no length: the ELF's own tables say how long it is. */
static int
parse_elf(const char *data, struct sim_image *image)
{
    const Elf64_Ehdr *header = (const void *)data;
    const Elf64_Shdr *sections = (const void *)(data + header->e_shoff);
    if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_machine != 190 /* EM_CUDA */) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    image->bytes = header->e_shoff + (uint64_t)header->e_shnum * sizeof *sections;
    for (int i = 0; i < header->e_shnum; i++) {
        uint64_t end =
            sections[i].sh_offset + (sections[i].sh_type == SHT_NOBITS ? 0 : sections[i].sh_size);
        image->bytes = end > image->bytes ? end : image->bytes;
        if (sections[i].sh_type == SHT_SYMTAB) {
            read_symbols(data, sections, &sections[i], image);
        }
    }
    uint64_t end = header->e_phoff + (uint64_t)header->e_phnum * sizeof(Elf64_Phdr);
    image->bytes = end > image->bytes ? end : image->bytes;
    return CUDA_SUCCESS;
}

static size_t
word_length(const char *text)
{
    size_t length = 0;
    while (isalnum((unsigned char)text[length]) ||
           (text[length] != '\0' && strchr("_$%", text[length]) != NULL)) {
        length++;
    }
    return length;
}

/* "u32 name[4][2];" after the dot of the type: size of the type times the dimensions. */
static void
parse_variable(const char *statement, const char *end, struct sim_image *image)
{
    int managed = 0;
    unsigned bits = 0;
    const char *at = statement;
    while (at < end && !(isalpha((unsigned char)*at) || *at == '_' || *at == '$')) {
        if (*at == '.') {
            managed |= strncmp(at, ".attribute(.managed)", 20) == 0;
            unsigned parsed;
            if (strncmp(at, ".align", 6) == 0) {
                at += 6;
            } else if (strncmp(at, ".attribute", 10) == 0) {
                at = memchr(at, ')', (size_t)(end - at));
                at = at == NULL ? end : at;
            } else if (sscanf(at, ".%*[busf]%u", &parsed) == 1) {
                bits = parsed;
            }
            at++;
            at += at < end ? word_length(at) : 0;
            continue;
        }
        at++;
    }
    size_t length = at < end ? word_length(at) : 0;
    uint64_t bytes = bits / 8, dimension;
    for (const char *open = at + length; open < end && *open == '['; open = strchr(open, ']') + 1) {
        dimension = strtoull(open + 1, NULL, 0);
        bytes *= dimension == 0 ? 1 : dimension;
    }
    if (length > 0 && bytes > 0) {
        add_global(image, at, length, bytes, managed);
    }
}

static int
starts_word(const char *text, const char *at, const char *word)
{
    return strncmp(at, word, strlen(word)) == 0 && (at == text || isspace((unsigned char)at[-1])) &&
           isspace((unsigned char)at[strlen(word)]);
}

static int
parse_ptx(const char *text, struct sim_image *image)
{
    int depth = 0;
    for (const char *at = text; *at != '\0'; at++) {
        if (at[0] == '/' && at[1] == '/') {
            at += strcspn(at, "\n");
            at -= *at == '\0';
            continue;
        }
        depth += (*at == '{') - (*at == '}');
        if (depth == 0 && starts_word(text, at, ".entry")) {
            const char *name = at + 6 + strspn(at + 6, " \t\r\n");
            add_kernel(image, name, word_length(name));
        } else if (depth == 0 &&
                   (starts_word(text, at, ".global") || starts_word(text, at, ".const"))) {
            const char *end = at + strcspn(at, ";={");
            parse_variable(at + word_length(at + 1) + 1, end, image);
            at = *end == '=' ? end + strcspn(end, ";") : end;
            at -= *at == '{' || *at == '\0';
        }
    }
    image->bytes = strlen(text) + 1;
    const char *outside = strstr(text, ".extern .func");
    image->calls = outside != NULL;
    image->heap = outside != NULL && strstr(outside, " malloc") != NULL;
    return CUDA_SUCCESS;
}

static int
looks_like_ptx(const char *text)
{
    for (;;) {
        text += strspn(text, " \t\r\n");
        if (text[0] == '/' && text[1] == '/') {
            text += strcspn(text, "\n");
        } else if (text[0] == '/' && text[1] == '*') {
            const char *end = strstr(text, "*/");
            text = end == NULL ? "" : end + 2;
        } else {
            return strncmp(text, ".version", 8) == 0;
        }
    }
}

/* How well ENTRY suits a GPU of architecture ARCH, 75 for 7.5: 0 is not at all. */
static uint32_t
fitness(const struct fat_entry *entry, uint32_t arch)
{
    if ((entry->flags & FAT_COMPRESSED) != 0) {
        sim_log("compressed members of fat binaries are not simulated");
    } else if (entry->kind == FAT_KIND_PTX && entry->arch <= arch) {
        return 1 + entry->arch;
    } else if (entry->kind == FAT_KIND_ELF && entry->arch <= arch &&
               entry->arch / 10 == arch / 10) {
        return CUBIN_FIRST + entry->arch;
    }
    return 0;
}

/* As the driver does: the newest cubin of the GPU's generation, else the newest PTX. */
static int
parse_fat(const char *data, uint32_t arch, struct sim_image *image)
{
    const struct fat_header *header = (const void *)data;
    const char *end = data + header->header_bytes + header->bytes;
    const struct fat_entry *entry, *best = NULL;
    uint32_t best_fitness = 0;
    for (const char *at = data + header->header_bytes; at < end;
         at += entry->header_bytes + entry->bytes) {
        entry = (const void *)at;
        if (fitness(entry, arch) > best_fitness) {
            best = entry;
            best_fitness = fitness(entry, arch);
        }
    }
    if (best == NULL) {
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    const char *body = (const char *)best + best->header_bytes;
    int result = best->kind == FAT_KIND_ELF ? parse_elf(body, image) : parse_ptx(body, image);
    image->bytes = (uint64_t)(end - data);
    return result;
}

int
sim_image_parse(const void *data, const struct sim_device *device, struct sim_image *image)
{
    uint32_t magic;
    memset(image, 0, sizeof *image);
    memcpy(&magic, data, sizeof magic);
    if (magic == FAT_WRAPPER) {
        return sim_image_parse(((const struct fat_wrapper *)data)->data, device, image);
    }
    if (magic == FAT_MAGIC) {
        const struct cgpu_machine_gpu *gpu = device->facts;
        return parse_fat(data, gpu->capability_major * 10 + gpu->capability_minor, image);
    }
    if (memcmp(data, ELFMAG, SELFMAG) == 0) {
        return parse_elf(data, image);
    }
    return looks_like_ptx(data) ? parse_ptx(data, image) : CUDA_ERROR_INVALID_IMAGE;
}

void
sim_image_free(struct sim_image *image)
{
    for (size_t i = 0; i < image->kernel_count; i++) {
        free(image->kernels[i]);
    }
    for (size_t i = 0; i < image->global_count; i++) {
        free(image->globals[i].name);
    }
    free(image->kernels);
    free(image->globals);
    memset(image, 0, sizeof *image);
}

/* The whole file and a zero byte, so that text ends; the caller frees it. */
int
sim_image_read_file(const char *path, void **data)
{
    FILE *file = path == NULL ? NULL : fopen(path, "rbe");
    if (file == NULL) {
        return path == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_FILE_NOT_FOUND;
    }
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *bytes = calloc(1, (size_t)size + 64);
    size_t got = fread(bytes, 1, (size_t)size, file);
    fclose(file);
    if (got != (size_t)size) {
        free(bytes);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *data = bytes;
    return CUDA_SUCCESS;
}
