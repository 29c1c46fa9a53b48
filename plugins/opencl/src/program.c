/* program.c - OpenCL C to programs: once for each text, and kept on disk.
 *
 * A text's extents and strides are arguments of its kernels, so that nodes of many shapes share a
 * program: compiling one takes longer than most kernels run.
 */
#include "keep.h"
#include "plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct program {
    struct program *next;
    cl_program program;
    /* The options for the compiler, a zero, and the source. */
    char *key;
    size_t key_len;
};

/* What every text begins with: a parameter that is an operand is its buffer, and where its first element
 * lies in it. */
static const char PRELUDE[] =
        "#define IN(type, x) __global const type *x, const uint x##_at\n"
        "#define OUT(type, x) __global type *x, const uint x##_at\n"
        "#define HAVE(x) x += x##_at\n"
        "typedef struct { uint rank; uint extents[8]; uint strides[8]; } Walk;\n"
        "uint place(uint i, const Walk *w) {\n"
        "  uint at = 0;\n"
        "  for (uint d = w->rank; d > 0; d--) {\n"
        "    at += i % w->extents[d - 1] * w->strides[d - 1];\n"
        "    i /= w->extents[d - 1];\n"
        "  }\n"
        "  return at;\n"
        "}\n";

/* FNV-1a, 64 bits (Fowler, Noll and Vo). */
#define HASH_SEED UINT64_C(0xcbf29ce484222325)

static uint64_t hash(uint64_t seed, const void *data, size_t len) {
    const unsigned char *bytes = data;
    for (size_t i = 0; i < len; i++) {
        seed = (seed ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
    return seed;
}

/* The file of a program in the host's cache folder; 0 if there is no folder. */
static int cache_path(
        const devbay_device *device, const char *key, size_t key_len, char *path, size_t path_len) {
    const devbay_host_api *host = device->instance->host;
    devbay_str folder = {NULL, 0};
    if (!DEVBAY_HAS(devbay_host_api, host, config) || host->config == NULL ||
            host->config(host->ctx, (devbay_str)DEVBAY_STR("cache_dir"), &folder) != 0) {
        return 0;
    }
    uint64_t id = hash(HASH_SEED, PRELUDE, sizeof(PRELUDE));
    id = hash(id, key, key_len);
    id = hash(id, device->name, strlen(device->name));
    id = hash(id, device->driver_name, strlen(device->driver_name));
    int n = snprintf(path, path_len, "%.*s/opencl-%016llx.bin", (int)folder.len, folder.ptr,
            (unsigned long long)id);
    return n > 0 && (size_t)n < path_len;
}

/* What a file begins with; the key and what the driver compiled follow. Two keys may have one name, and a driver need not
 * survive bytes that it did not write. */
struct head {
    uint64_t key_len;
    uint64_t binary_len;
    uint64_t binary_hash;
};

static struct head head_of(size_t key_len, const unsigned char *binary, size_t binary_len) {
    return (struct head){key_len, binary_len, hash(HASH_SEED, binary, binary_len)};
}

static cl_program load(const devbay_device *device, const char *path, const char *key, size_t key_len) {
    const struct driver *driver = driver_of(device);
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return NULL;
    }
    cl_program program = NULL;
    char *content = NULL;
    if (fseek(file, 0, SEEK_END) == 0) {
        long size = ftell(file);
        size_t before = sizeof(struct head) + key_len;
        if (size > 0 && (size_t)size > before && (content = malloc((size_t)size)) != NULL &&
                fseek(file, 0, SEEK_SET) == 0 && fread(content, (size_t)size, 1, file) == 1) {
            const unsigned char *binary = (const unsigned char *)content + before;
            size_t len = (size_t)size - before;
            struct head expected = head_of(key_len, binary, len);
            if (memcmp(content, &expected, sizeof(expected)) == 0 &&
                    memcmp(content + sizeof(expected), key, key_len) == 0) {
                cl_int code = CL_SUCCESS, loaded = CL_SUCCESS;
                program = driver->clCreateProgramWithBinary(
                        device->context, 1, &device->cl, &len, &binary, &loaded, &code);
                code = code == CL_SUCCESS ? loaded : code;
                if (code == CL_SUCCESS) {
                    code = driver->clBuildProgram(program, 1, &device->cl, key, NULL, NULL);
                }
                /* Another driver's: compiled anew, as is what is damaged. */
                if (code != CL_SUCCESS && program != NULL) {
                    driver->clReleaseProgram(program);
                    program = NULL;
                }
            }
        }
    }
    free(content);
    fclose(file);
    return program;
}

/* Keeps what the driver compiled; what cannot be written is compiled again next time. */
static void store(const devbay_device *device, const char *path, const char *key, size_t key_len,
        cl_program program) {
    const struct driver *driver = driver_of(device);
    size_t len = 0;
    if (driver->clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof(len), &len, NULL) !=
                    CL_SUCCESS ||
            len == 0) {
        return;
    }
    unsigned char *binary = malloc(len);
    if (binary != NULL &&
            driver->clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof(binary), &binary, NULL) ==
                    CL_SUCCESS) {
        struct head head = head_of(key_len, binary, len);
        const struct piece pieces[] = {{&head, sizeof(head)}, {key, key_len}, {binary, len}};
        keep_file(path, pieces, sizeof(pieces) / sizeof(*pieces));
    }
    free(binary);
}

static devbay_status build(devbay_device *device, const char *source, const char *options,
        cl_program *out, devbay_error_detail *error) {
    const struct driver *driver = driver_of(device);
    cl_int code = CL_SUCCESS;
    const char *parts[] = {PRELUDE, source};
    cl_program program =
            driver->clCreateProgramWithSource(device->context, 2, parts, NULL, &code);
    if (code != CL_SUCCESS) {
        return fail_cl(error, code, "a program");
    }
    code = driver->clBuildProgram(program, 1, &device->cl, options, NULL, NULL);
    if (code != CL_SUCCESS) {
        char words[900] = "";
        driver->clGetProgramBuildInfo(
                program, device->cl, CL_PROGRAM_BUILD_LOG, sizeof(words) - 1, words, NULL);
        driver->clReleaseProgram(program);
        return fail(error, DEVBAY_STATUS_INTERNAL, "OpenCL C does not compile: %s: %s",
                driver_error(code), words);
    }
    *out = program;
    return DEVBAY_STATUS_OK;
}

devbay_status program_get(devbay_device *device, const char *source, const char *options,
        cl_program *out, devbay_error_detail *error) {
    size_t options_len = strlen(options), source_len = strlen(source);
    size_t key_len = options_len + 1 + source_len;
    char *key = malloc(key_len + 1);
    struct program *made = calloc(1, sizeof(*made));
    if (key == NULL || made == NULL) {
        free(key);
        free(made);
        return fail(error, DEVBAY_STATUS_OUT_OF_MEMORY, "no memory for a program");
    }
    memcpy(key, options, options_len + 1);
    memcpy(key + options_len + 1, source, source_len + 1);
    /* Whoever wants the same program waits until it is made. */
    pthread_mutex_lock(&device->programs_lock);
    struct program *program = device->programs;
    while (program != NULL &&
            (program->key_len != key_len || memcmp(program->key, key, key_len) != 0)) {
        program = program->next;
    }
    devbay_status status = DEVBAY_STATUS_OK;
    if (program == NULL) {
        char path[1024];
        int is_cached = cache_path(device, key, key_len, path, sizeof(path));
        made->program = is_cached ? load(device, path, key, key_len) : NULL;
        if (made->program == NULL) {
            status = build(device, source, options, &made->program, error);
            if (status == DEVBAY_STATUS_OK && is_cached) {
                store(device, path, key, key_len, made->program);
            }
        }
        if (status == DEVBAY_STATUS_OK) {
            made->key = key;
            made->key_len = key_len;
            made->next = device->programs;
            device->programs = made;
            program = made;
            key = NULL;
            made = NULL;
        }
    }
    if (status == DEVBAY_STATUS_OK) {
        *out = program->program;
    }
    pthread_mutex_unlock(&device->programs_lock);
    free(key);
    free(made);
    return status;
}

void programs_free(devbay_device *device) {
    while (device->programs != NULL) {
        struct program *next = device->programs->next;
        driver_of(device)->clReleaseProgram(device->programs->program);
        free(device->programs->key);
        free(device->programs);
        device->programs = next;
    }
}
