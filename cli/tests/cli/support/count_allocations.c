/* Counts heap allocations of a process: loaded before everything else with LD_PRELOAD, it stands in for the
 * C library's allocation functions, also for those that a plugin's library calls. */

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* glibc's own names of what is replaced here. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t align, size_t size);

/* Allocations so far, by all threads; the test reads it. */
_Atomic uint64_t devbay_allocations;

static void count(void)
{
    atomic_fetch_add_explicit(&devbay_allocations, 1, memory_order_relaxed);
}

void *malloc(size_t size)
{
    count();
    return __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    count();
    return __libc_calloc(n, size);
}

void *realloc(void *old, size_t size)
{
    count();
    return __libc_realloc(old, size);
}

void *memalign(size_t align, size_t size)
{
    count();
    return __libc_memalign(align, size);
}

void *aligned_alloc(size_t align, size_t size)
{
    return memalign(align, size);
}

int posix_memalign(void **out, size_t align, size_t size)
{
    if (align % sizeof(void *) != 0 || (align & (align - 1)) != 0 || align == 0)
        return EINVAL;
    void *memory = memalign(align, size);
    if (memory == NULL)
        return ENOMEM;
    *out = memory;
    return 0;
}
