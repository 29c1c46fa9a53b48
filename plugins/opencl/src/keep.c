/* keep.c - files that are there whole or not at all, as the host and the SDK write theirs (the SDK's
 * `whole_file`), in the same folders.
 *
 * A file is written under a random name in the folder of its place, synced, and renamed. A process number
 * is no such name: containers that share a volume have the same ones. The name is opened exclusively, so
 * that it is never another's file, nor what a link points at. It is locked as long as it is written: one
 * that can be locked by another was left by a process that was killed, and is removed before the next file
 * is written.
 */
#include "keep.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* What names of temporary files begin and end with; 16 hexadecimal digits are between. */
static const char PREFIX[] = ".devbay-";
static const char SUFFIX[] = ".part";
enum { N_DIGITS = 16, ATTEMPTS_MAX = 16, NAME_LEN = sizeof(PREFIX) - 1 + N_DIGITS + sizeof(SUFFIX) - 1 };

static int is_temporary(const char *name) {
    const char *digits = name + sizeof(PREFIX) - 1;
    return strlen(name) == NAME_LEN && memcmp(name, PREFIX, sizeof(PREFIX) - 1) == 0 &&
           strspn(digits, "0123456789abcdefABCDEF") == N_DIGITS && strcmp(digits + N_DIGITS, SUFFIX) == 0;
}

/* Removes temporary files that no living process writes. What cannot be looked at stays. */
static void sweep(int folder) {
    int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = again < 0 ? NULL : fdopendir(again);
    if (entries == NULL) {
        if (again >= 0) {
            close(again);
        }
        return;
    }
    const struct dirent *entry;
    while ((entry = readdir(entries)) != NULL) {
        if (!is_temporary(entry->d_name)) {
            continue;
        }
        /* A pipe of that name would be waited for, and a link is not ours. */
        int left = openat(folder, entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        struct stat about;
        if (left >= 0 && fstat(left, &about) == 0 && S_ISREG(about.st_mode) &&
                flock(left, LOCK_EX | LOCK_NB) == 0) {
            unlinkat(folder, entry->d_name, 0);
        }
        if (left >= 0) {
            close(left);
        }
    }
    closedir(entries);
}

/* A new file under a name that nobody guesses, locked; below 0 if there is none. */
static int create(int folder, char name[NAME_LEN + 1]) {
    for (int i = 0; i < ATTEMPTS_MAX; i++) {
        uint64_t random;
        if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
            return -1;
        }
        snprintf(name, NAME_LEN + 1, "%s%016llx%s", PREFIX, (unsigned long long)random, SUFFIX);
        int file = openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file < 0 && errno == EEXIST) {
            continue;
        }
        if (file < 0) {
            return -1;
        }
        /* Where there are no locks there is no sweep either. */
        (void)flock(file, LOCK_EX | LOCK_NB);
        /* Another process may have swept it before it was locked. */
        struct stat about;
        if (fstat(file, &about) == 0 && about.st_nlink > 0) {
            return file;
        }
        close(file);
    }
    return -1;
}

static int write_all(int file, const char *data, size_t len) {
    while (len > 0) {
        ssize_t n = write(file, data, len);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return 0;
        }
        data += n;
        len -= (size_t)n;
    }
    return 1;
}

int keep_file(const char *path, const struct piece *pieces, size_t n_pieces) {
    const char *slash = strrchr(path, '/');
    char folder_path[1024] = ".";
    size_t folder_len = slash == NULL ? 0 : (size_t)(slash - path) + 1;
    if (folder_len >= sizeof(folder_path)) {
        return 0;
    }
    if (folder_len > 0) {
        memcpy(folder_path, path, folder_len);
        folder_path[folder_len] = 0;
    }
    int folder = open(folder_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) {
        return 0;
    }
    sweep(folder);
    char name[NAME_LEN + 1];
    int file = create(folder, name);
    int is_kept = 0;
    if (file >= 0) {
        int is_whole = 1;
        for (size_t i = 0; i < n_pieces && is_whole; i++) {
            is_whole = write_all(file, pieces[i].data, pieces[i].len);
        }
        is_kept = is_whole && fsync(file) == 0 && renameat(folder, name, folder, path + folder_len) == 0;
        if (is_kept) {
            /* The name, too, reaches the disk; some file systems have no word for it. */
            (void)fsync(folder);
        } else {
            unlinkat(folder, name, 0);
        }
        close(file);
    }
    close(folder);
    return is_kept;
}
