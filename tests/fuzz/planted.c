/* A reader with a mistake behind four letters, for the test of the driver. */
#include "driver.h"

void
fuzz_begin(void)
{
}

void
fuzz_one(const unsigned char *data, size_t size)
{
    static const char word[] = "fuzz";
    size_t at = 0;

    while (at < size && at < 4 && data[at] == (unsigned char)word[at]) {
        at++;
    }
    FUZZ_CHECK(at < 4 || data[size] == 0); /* one byte too far */
}
