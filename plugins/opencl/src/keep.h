/* keep.h - files that are there whole or not at all, also when the process is killed. */
#ifndef KEEP_H
#define KEEP_H

#include <stddef.h>

struct piece {
    const void *data;
    size_t len;
};

/* Writes pieces one behind the other to a file, which takes the place of what was there. 0 if that failed; then what
 * was there is there as it was. */
int keep_file(const char *path, const struct piece *pieces, size_t n_pieces);

#endif
