/* Prints, for each library that is named, whose it is: the image's, another one, or none. */
#include <dlfcn.h>
#include <stdio.h>

int
main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        void *library = dlopen(argv[i], RTLD_LAZY | RTLD_LOCAL);
        const char *whose = library == NULL                           ? "none"
                            : dlsym(library, "brought_along") != NULL ? "brought"
                                                                      : "ours";
        printf("%s %s\n", argv[i], whose);
    }
    return 0;
}
