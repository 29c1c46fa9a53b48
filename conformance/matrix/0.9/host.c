/* host.c - a small devbay host: it runs Relu on four numbers with a plugin, or says why not.
 *
 *     cc -std=c11 -O2 -Wall -Wextra -pedantic -I plugin-api/include \
 *         -o host conformance/fixtures/host.c -ldl
 *     ./host libdevbay_plugin_minimal.so
 *
 * It prints one line and ends with 0 for `served as 0.N`, with 2 for `refused: WORDS`, and with 1
 * for `failed: WORDS`, when the plugin breaks a rule. Each release of the ABI archives it in
 * conformance/matrix (B8), so it compiles against every header since 0.1. It negotiates with the
 * minors of its header (B3), reads no struct of the plugin beyond the size that the struct states,
 * and looks for writes beyond the size of its own (B4). POSIX only, for dlopen.
 */
#define _POSIX_C_SOURCE 200809L
#include "devbay_plugin.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The header has these since 0.2. */
#ifndef DEVBAY_HAS
#define DEVBAY_HAS(type, ptr, field) \
    ((ptr)->struct_size >= offsetof(type, field) + sizeof((ptr)->field))
#define DEVBAY_AT(list, i) \
    ((const void *)((const char *)(list)->ptr + (uint64_t)(i) * (list)->stride))
#endif

/* Flags that this host would have to understand, and does not; the header has them since 0.9. */
#ifdef DEVBAY_FLAGS_REQUIRED
#define NOT_UNDERSTOOD(flags, known) ((flags) & DEVBAY_FLAGS_REQUIRED & ~(known))
#else
#define NOT_UNDERSTOOD(flags, known) UINT64_C(0)
#endif

#define N_ELEMENTS 4
#define STAGING_BYTES 4096
#define WAIT_ROUNDS 10000

/* A struct that the plugin writes to, with bytes behind it that it must leave alone. */
#define GUARDED(type) \
    struct { \
        type it; \
        unsigned char guard[64]; \
    }
#define GUARD_BYTE 0xA5
#define GUARD(guarded) memset((guarded).guard, GUARD_BYTE, sizeof((guarded).guard))
#define CHECK_GUARD(guarded) check_guard((guarded).guard, sizeof((guarded).guard))

/* Copies a plugin's struct, at most as far as both sides know it; the rest stays zero (B4). */
#define READ(type, last_required, out, from) \
    read_struct(#type, out, sizeof(type), \
            offsetof(type, last_required) + sizeof((out)->last_required), from)

static char error_text[256];
static devbay_error_detail error = {
        .struct_size = sizeof(devbay_error_detail),
        .text = error_text,
        .text_capacity = sizeof(error_text),
};

static _Noreturn void fail(const char *what) {
    printf("failed: %s\n", what);
    exit(1);
}

/* Ends with the plugin's words if a call failed. */
static void check(devbay_status status, const char *call) {
    if (status != DEVBAY_STATUS_OK) {
        uint64_t len = error.text_len < sizeof(error_text) ? error.text_len : sizeof(error_text);
        printf("failed: %s: status %d: %.*s\n", call, (int)status, (int)len, error_text);
        exit(1);
    }
}

static void check_guard(const unsigned char *guard, size_t size) {
    for (size_t i = 0; i < size; i++) {
        if (guard[i] != GUARD_BYTE) {
            fail("the plugin wrote beyond the size of a struct");
        }
    }
}

static void read_struct(
        const char *name, void *out, size_t known, size_t required, const void *from) {
    uint32_t size = 0;
    memset(out, 0, known);
    if (from == NULL) {
        fail(name);
    }
    memcpy(&size, from, sizeof(size));
    if (size < required) {
        fail(name);
    }
    memcpy(out, from, size < known ? size : known);
}

/* ---------------------------------- services of the host ---------------------------------- */

static void log_text(void *ctx, uint32_t level, devbay_str text) {
    (void)ctx;
    fprintf(stderr, "%u: %.*s\n", (unsigned)level, (int)text.len, text.ptr);
}

static devbay_status parallel_for(
        void *ctx, uint64_t n, uint64_t grain, devbay_chunk_fn body, void *arg) {
    (void)ctx;
    for (uint64_t begin = 0; begin < n;) {
        uint64_t end = grain == 0 || n - begin <= grain ? n : begin + grain;
        devbay_status status = body(arg, begin, end, 0);
        if (status != DEVBAY_STATUS_OK) {
            return status;
        }
        begin = end;
    }
    return DEVBAY_STATUS_OK;
}

static devbay_status config(void *ctx, devbay_str key, devbay_str *out) {
    (void)ctx;
    (void)key;
    (void)out;
    return DEVBAY_STATUS_NOT_FOUND;
}

static const void *get_extension(void *ctx, uint32_t id, uint32_t min_revision) {
    (void)ctx;
    (void)id;
    (void)min_revision;
    return NULL;
}

static const devbay_host_api services = {
        .struct_size = sizeof(devbay_host_api),
        .n_slots = 1,
        .log = log_text,
        .parallel_for = parallel_for,
        .config = config,
        .get_extension = get_extension,
};

/* -------------------------------------- negotiation --------------------------------------- */

static const char *range(char text[32], uint32_t min, uint32_t max) {
    if (min == max) {
        snprintf(text, 32, "0.%" PRIu32, min);
    } else {
        snprintf(text, 32, "0.%" PRIu32 " to 0.%" PRIu32, min, max);
    }
    return text;
}

/* The highest minor that both sides know (B3); ends with the words of a refusal if there is none.
 * The start of the description is the same in every version. */
static uint32_t negotiate(const devbay_plugin_info *info) {
    uint32_t min = info->abi_minor_min, max = info->abi_minor_max;
    char theirs[32], ours[32];
    if (min > max) {
        printf("refused: the plugin's version range is empty: %" PRIu32 " to %" PRIu32 "\n", min,
                max);
        exit(2);
    }
    if (min > DEVBAY_ABI_MINOR || max < DEVBAY_ABI_MINOR_MIN) {
        printf("refused: no common ABI version: the plugin speaks %s, this host %s; %s\n",
                range(theirs, min, max), range(ours, DEVBAY_ABI_MINOR_MIN, DEVBAY_ABI_MINOR),
                min > DEVBAY_ABI_MINOR
                        ? "update devbay, or ask for a plugin built for an older one"
                        : "ask the vendor for a newer plugin");
        exit(2);
    }
    return max < DEVBAY_ABI_MINOR ? max : DEVBAY_ABI_MINOR;
}

/* ------------------------------------------ work ------------------------------------------ */

static devbay_plugin_table table;
static devbay_device_info device;
static devbay_memory_space space;

static devbay_buffer_ref allocate(uint64_t size_bytes, uint64_t align) {
    devbay_alloc_desc desc = {
            .struct_size = sizeof(devbay_alloc_desc),
            .size_bytes = size_bytes,
            .align = align > space.alloc_align ? align : space.alloc_align,
    };
    GUARDED(devbay_allocation) out = {0};
    GUARD(out);
    out.it.struct_size = sizeof(devbay_allocation);
    check(table.buffer_alloc(device.handle, &desc, &out.it, &error), "buffer_alloc");
    CHECK_GUARD(out);
    if (out.it.buffer == NULL || out.it.size_bytes < size_bytes) {
        fail("buffer_alloc gave no buffer, or one that is too small");
    }
    return (devbay_buffer_ref){out.it.buffer, out.it.base, 0, size_bytes};
}

/* Position of the kernel in the plugin's list. */
static uint32_t find_relu(const devbay_list *kernels) {
    for (uint64_t i = 0; i < kernels->len; i++) {
        devbay_kernel_info kernel;
        READ(devbay_kernel_info, output_typevars, &kernel, DEVBAY_AT(kernels, i));
        if (kernel.domain.len == 0 && kernel.op.len == 4 &&
                memcmp(kernel.op.ptr, "Relu", 4) == 0 &&
                NOT_UNDERSTOOD(kernel.flags, UINT64_C(0)) == 0) {
            return (uint32_t)i;
        }
    }
    fail("the plugin has no kernel for Relu");
}

static void check_functions(void) {
    int is_inline = (device.flags & DEVBAY_DEVICE_INLINE) != 0;
    if (table.destroy == NULL || table.buffer_alloc == NULL || table.buffer_free == NULL ||
            table.stream_create == NULL || table.stream_destroy == NULL || table.copy == NULL ||
            table.prepare == NULL || table.unprepare == NULL ||
            (!is_inline && (table.stream_signal == NULL || table.stream_reached == NULL))) {
        fail("a required function is missing");
    }
}

/* Waits for all that was enqueued. Inline devices have done it. */
static void finish(devbay_stream *stream) {
    uint64_t reached = 0;
    if ((device.flags & DEVBAY_DEVICE_INLINE) != 0) {
        return;
    }
    check(table.stream_signal(stream, 1), "stream_signal");
    for (int i = 0; reached < 1; i++) {
        if (i == WAIT_ROUNDS) {
            fail("a signal was not reached within ten seconds");
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        check(table.stream_reached(stream, &reached), "stream_reached");
    }
}

/* What a minor added is used where both sides know it. */
static void use_additions(uint32_t minor) {
#if DEVBAY_ABI_MINOR >= 2
    if (minor >= 2 && table.memory_info != NULL) {
        GUARDED(devbay_memory_info) out = {0};
        GUARD(out);
        out.it.struct_size = sizeof(devbay_memory_info);
        devbay_status status = table.memory_info(device.handle, 0, &out.it, &error);
        if (status != DEVBAY_STATUS_UNSUPPORTED) {
            check(status, "memory_info");
        }
        CHECK_GUARD(out);
    }
#endif
    (void)minor;
}

static void run_relu(devbay_instance *instance, uint32_t kernel_idx, uint32_t minor) {
    static const float input[N_ELEMENTS] = {1.0f, -2.0f, 3.0f, -0.5f};
    static const float expected[N_ELEMENTS] = {1.0f, 0.0f, 3.0f, 0.0f};
    static const int64_t shape[] = {N_ELEMENTS};
    static char staging[STAGING_BYTES];
    /* Hosts of 0.1 copied whole granules alone. */
    uint64_t granule = space.copy_granule > 0 ? space.copy_granule : 1;
    uint64_t size = (sizeof(input) + granule - 1) / granule * granule;
    if (size > STAGING_BYTES) {
        fail("the granule of copies is larger than this host's memory for them");
    }
    devbay_stream_desc stream_desc = {.struct_size = sizeof(devbay_stream_desc), .kind = 0};
    devbay_stream *stream = NULL;
    check(table.stream_create(device.handle, &stream_desc, &stream, &error), "stream_create");

    devbay_tensor tensor = {
            .struct_size = sizeof(devbay_tensor),
            .rank = 1,
            .dtype = {DEVBAY_DTYPE_FLOAT, 32, 1},
            .shape = shape,
    };
    devbay_prepare_desc desc = {
            .struct_size = sizeof(devbay_prepare_desc),
            .kernel_idx = kernel_idx,
            .device = device.handle,
            .inputs = {&tensor, 1, sizeof(devbay_tensor)},
            .outputs = {&tensor, 1, sizeof(devbay_tensor)},
            .label = DEVBAY_STR("relu"),
    };
    GUARDED(devbay_prepared) prepared = {0};
    GUARD(prepared);
    prepared.it.struct_size = sizeof(devbay_prepared);
    check(table.prepare(instance, &desc, &prepared.it, &error), "prepare");
    CHECK_GUARD(prepared);

    /* The input, the output, and the workspace if there is one. */
    devbay_buffer_ref refs[3] = {allocate(size, 0), allocate(size, 0)};
    if (prepared.it.workspace_bytes > 0) {
        refs[2] = allocate(prepared.it.workspace_bytes, prepared.it.workspace_align);
    }
    memcpy(staging, input, sizeof(input));
    devbay_copy_desc in = {
            .struct_size = sizeof(devbay_copy_desc),
            .kind = DEVBAY_COPY_HOST_TO_BUFFER,
            .dst = refs[0],
            .host_src = staging,
            .size_bytes = size,
    };
    check(table.copy(stream, &in), "copy to the device");
    check(prepared.it.launch(prepared.it.state, stream, refs, NULL), "launch");
    float output[STAGING_BYTES / sizeof(float)] = {0};
    devbay_copy_desc out = {
            .struct_size = sizeof(devbay_copy_desc),
            .kind = DEVBAY_COPY_BUFFER_TO_HOST,
            .src = refs[1],
            .host_dst = output,
            .size_bytes = size,
    };
    check(table.copy(stream, &out), "copy from the device");
    finish(stream);
    use_additions(minor);
    for (int i = 0; i < N_ELEMENTS; i++) {
        if (output[i] != expected[i]) {
            fail("Relu gave other numbers");
        }
    }
    table.unprepare(instance, &prepared.it);
    for (int i = 0; i < 3; i++) {
        if (refs[i].buffer != NULL) {
            table.buffer_free(refs[i].buffer);
        }
    }
    table.stream_destroy(stream);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fail("expected one argument, the path of a plugin");
    }
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    void *symbol = library == NULL ? NULL : dlsym(library, "devbay_plugin_query_v0");
    if (symbol == NULL) {
        printf("refused: no devbay plugin: %s\n", dlerror());
        return 2;
    }
    devbay_query_fn query;
    memcpy(&query, &symbol, sizeof(query));
    const devbay_plugin_info *first = query();
    if (first == NULL) {
        fail("the entry returned NULL");
    }
    uint32_t minor = negotiate(first);

    devbay_plugin_info info;
    READ(devbay_plugin_info, table, &info, first);
    READ(devbay_plugin_table, unprepare, &table, info.table);
    devbay_create_desc desc = {
            .struct_size = sizeof(devbay_create_desc),
            .abi_minor = minor,
            .host = &services,
    };
    if (table.create == NULL || table.devices == NULL) {
        fail("create or devices is missing");
    }
    devbay_instance *instance = NULL;
    devbay_list devices = {0};
    check(table.create(&desc, &instance, &error), "create");
    check(table.devices(instance, &devices, &error), "devices");
    if (devices.len == 0) {
        fail("the plugin has no device");
    }
    READ(devbay_device_info, spaces, &device, devices.ptr);
    if (device.spaces.len == 0) {
        fail("the device has no memory");
    }
    READ(devbay_memory_space, alloc_align, &space, device.spaces.ptr);
    if (NOT_UNDERSTOOD(info.flags, UINT64_C(0)) != 0 ||
            NOT_UNDERSTOOD(device.flags, DEVBAY_DEVICE_INLINE) != 0 ||
            NOT_UNDERSTOOD(space.flags, UINT64_C(0)) != 0) {
        fail("a flag must be understood, and this host does not");
    }
    check_functions();
    run_relu(instance, find_relu(&info.kernels), minor);
    table.destroy(instance);
    printf("served as 0.%" PRIu32 "\n", minor);
    return 0;
}
