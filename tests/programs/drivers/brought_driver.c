/* A driver library that an image or a node brings. */
int
brought_along(void)
{
    return 1;
}
