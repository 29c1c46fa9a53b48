/* plugin.c - a devbay plugin: one device and three kernels, Relu, Add and MatMul of f32.
 *
 * It works as it is, with the processor as its device. Put your driver's calls where memory is
 * allocated and copied, and where kernels are prepared and launched. All state hangs from the
 * instance, all but the entry at the end is static, and no struct is read or written beyond the
 * size that it states (B4: rules are numbered as in devbay's docs/abi-rules.md). */
#include "devbay_helpers.h"
#include "devbay_plugin.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define ALLOC_ALIGN UINT64_C(64)
#define ALLOC_MAX (UINT64_C(1) << 30)

/* There is one device, so its handle is the instance's. A driver's context would stand here. */
struct devbay_instance {
    devbay_device_info device;
};

/* Stands before the memory, one alignment in front of it. */
struct devbay_buffer {
    uint64_t size_bytes;
};

/* Work is done when the call returns, so a stream remembers nothing. A queue would stand here. */
struct devbay_stream {
    devbay_device *device;
};

/* What a launch needs of what `prepare` has checked. Threads share it: nobody writes it again. */
struct work {
    uint64_t n[3];       /* Elements of the inputs, then of the output. */
    uint64_t k, columns; /* MatMul: terms of each sum, and columns of the output. */
};

static const devbay_memory_space spaces[] = {{
        .struct_size = sizeof(devbay_memory_space), .kind = DEVBAY_SPACE_UNIFIED,
        .flags = DEVBAY_SPACE_HOST_VISIBLE | DEVBAY_SPACE_ADDRESSABLE,
        .alloc_max = ALLOC_MAX, .alloc_align = ALLOC_ALIGN,
        .bind_align = sizeof(float), .copy_align = 1, .copy_granule = 1,
}};

static devbay_status create(
        const devbay_create_desc *desc, devbay_instance **out, devbay_error_detail *error) {
    if (desc->abi_minor < DEVBAY_ABI_MINOR_MIN || desc->abi_minor > DEVBAY_ABI_MINOR) {
        return devbay_fail(error, DEVBAY_STATUS_UNSUPPORTED, "ABI minor %u, expected %u to %u",
                (unsigned)desc->abi_minor, DEVBAY_ABI_MINOR_MIN, DEVBAY_ABI_MINOR);
    }
    /* Options of yours are read by devbay_find_option. */
    const devbay_str *key = devbay_unknown_option(&desc->options, NULL, 0);
    if (key != NULL) {
        return devbay_fail(error, DEVBAY_STATUS_INVALID, "unknown option %.*s", (int)key->len,
                key->ptr);
    }
    devbay_instance *instance = calloc(1, sizeof(*instance));
    if (instance == NULL) {
        return devbay_fail(error, DEVBAY_STATUS_OUT_OF_MEMORY, "no memory for an instance");
    }
    instance->device = (devbay_device_info){
            .struct_size = sizeof(devbay_device_info), .kind = DEVBAY_DEVICE_KIND_OTHER,
            .handle = (devbay_device *)instance,
            .id = DEVBAY_STR("0"), .name = DEVBAY_STR("template-plugin device"),
            .flags = DEVBAY_DEVICE_INLINE | DEVBAY_DEVICE_HOST_REFS,
            .spaces = DEVBAY_LIST(spaces),
    };
    *out = instance;
    return DEVBAY_STATUS_OK;
}

static void destroy(devbay_instance *instance) {
    free(instance);
}

static devbay_status devices(
        devbay_instance *instance, devbay_list *out, devbay_error_detail *error) {
    *out = (devbay_list){&instance->device, 1, sizeof(instance->device)};
    return DEVBAY_STATUS_OK;
}

static devbay_status buffer_alloc(devbay_device *device, const devbay_alloc_desc *desc,
        devbay_allocation *out, devbay_error_detail *error) {
    uint64_t size = desc->size_bytes;
    uint64_t align = desc->align > ALLOC_ALIGN ? desc->align : ALLOC_ALIGN;
    if (desc->space_idx != 0 || (desc->align & (desc->align - 1)) != 0 || align > ALLOC_MAX) {
        return devbay_fail(error, DEVBAY_STATUS_INVALID, "space %u of 1, or an alignment of %llu",
                (unsigned)desc->space_idx, (unsigned long long)desc->align);
    }
    /* aligned_alloc wants a multiple of the alignment. */
    devbay_buffer *buffer =
            size > ALLOC_MAX ? NULL : aligned_alloc(align, (size / align + 2) * align);
    if (buffer == NULL) {
        return devbay_fail(error, DEVBAY_STATUS_OUT_OF_MEMORY, "no memory for %llu bytes, at most %llu",
                (unsigned long long)size, (unsigned long long)ALLOC_MAX);
    }
    buffer->size_bytes = size;
    out->buffer = buffer;
    out->base = (uint64_t)(uintptr_t)buffer + align;
    out->size_bytes = size;
    return DEVBAY_STATUS_OK;
}

static void buffer_free(devbay_buffer *buffer) {
    free(buffer);
}

static devbay_status stream_create(devbay_device *device, const devbay_stream_desc *desc,
        devbay_stream **out, devbay_error_detail *error) {
    devbay_stream *stream = calloc(1, sizeof(*stream));
    if (stream == NULL) {
        return devbay_fail(error, DEVBAY_STATUS_OUT_OF_MEMORY, "no memory for a stream");
    }
    stream->device = device;
    *out = stream;
    return DEVBAY_STATUS_OK;
}

static void stream_destroy(devbay_stream *stream) {
    free(stream);
}

/* Whether a reference has `size` bytes, within its buffer if it names one. */
static int in_range(const devbay_buffer_ref *ref, uint64_t size) {
    uint64_t room = ref->buffer != NULL ? ref->buffer->size_bytes : UINT64_MAX;
    return size <= ref->length && ref->offset <= room && ref->length <= room - ref->offset;
}

static devbay_status copy(devbay_stream *stream, const devbay_copy_desc *desc) {
    int from_buffer = desc->kind != DEVBAY_COPY_HOST_TO_BUFFER;
    int to_buffer = desc->kind != DEVBAY_COPY_BUFFER_TO_HOST;
    uint64_t size = desc->size_bytes;
    uint64_t src = from_buffer ? desc->src.addr : (uint64_t)(uintptr_t)desc->host_src;
    uint64_t dst = to_buffer ? desc->dst.addr : (uint64_t)(uintptr_t)desc->host_dst;
    if (desc->kind < DEVBAY_COPY_HOST_TO_BUFFER || desc->kind > DEVBAY_COPY_BUFFER_TO_BUFFER) {
        return DEVBAY_STATUS_UNSUPPORTED;
    } else if (size == 0) {
        return DEVBAY_STATUS_OK;
    } else if (src == 0 || dst == 0 || (src < dst + size && dst < src + size) ||
            (from_buffer && !in_range(&desc->src, size)) ||
            (to_buffer && !in_range(&desc->dst, size))) {
        return DEVBAY_STATUS_INVALID;
    }
    memcpy((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, size);
    return DEVBAY_STATUS_OK;
}

/* The kernels. A launch checks nothing, as `prepare` has (B21); references are as operands are. */
#define FLOATS(ref) ((float *)(uintptr_t)(ref).addr)

static devbay_status relu(const void *state, devbay_stream *stream, const devbay_buffer_ref *refs,
        const int64_t *dims) {
    const struct work *work = state;
    float *x = FLOATS(refs[0]), *y = FLOATS(refs[1]);
    for (uint64_t i = 0; i < work->n[1]; i++) {
        y[i] = x[i] < 0.0f ? 0.0f : x[i]; /* Not `x > 0 ? x : 0`: a NaN stays one. */
    }
    return DEVBAY_STATUS_OK;
}

static devbay_status add(const void *state, devbay_stream *stream, const devbay_buffer_ref *refs,
        const int64_t *dims) {
    const struct work *work = state;
    float *a = FLOATS(refs[0]), *b = FLOATS(refs[1]), *y = FLOATS(refs[2]);
    for (uint64_t i = 0; i < work->n[2]; i++) {
        y[i] = a[i % work->n[0]] + b[i % work->n[1]];
    }
    return DEVBAY_STATUS_OK;
}

static devbay_status matmul(const void *state, devbay_stream *stream, const devbay_buffer_ref *refs,
        const int64_t *dims) {
    const struct work *work = state;
    float *a = FLOATS(refs[0]), *b = FLOATS(refs[1]), *y = FLOATS(refs[2]);
    for (uint64_t i = 0; i < work->n[2]; i++) {
        uint64_t row = i / work->columns, column = i % work->columns;
        float sum = 0.0f;
        for (uint64_t j = 0; j < work->k; j++) {
            sum += a[row * work->k + j] * b[j * work->columns + column];
        }
        y[i] = sum;
    }
    return DEVBAY_STATUS_OK;
}

static const devbay_dtype f32[] = {{DEVBAY_DTYPE_FLOAT, 32, 1}};
static const devbay_type_var typevars[] = {{sizeof(devbay_type_var), 1, f32}};
static const uint8_t first[] = {0}; /* All operands: those beyond the list are as its last. */

/* An op of ONNX's, as the opset `version` has it, with so many inputs and one output. */
#define KERNEL(name, version, n_inputs) \
    {.struct_size = sizeof(devbay_kernel_info), .op = DEVBAY_STR(name), .since_version = version, \
     .n_inputs_min = n_inputs, .n_inputs_max = n_inputs, .n_outputs_min = 1, .n_outputs_max = 1, \
     .typevars = DEVBAY_LIST(typevars), .input_typevars = DEVBAY_LIST(first), \
     .output_typevars = DEVBAY_LIST(first), .flags = DEVBAY_KERNEL_DETERMINISTIC}

/* A kernel is an entry in each of these, a launch function, and what `prepare` asks of it. */
enum { RELU, ADD, MATMUL, N_KERNELS };
static const devbay_kernel_info kernels[N_KERNELS] = {
        KERNEL("Relu", 14, 1), KERNEL("Add", 14, 2), KERNEL("MatMul", 13, 2)};
static const devbay_launch_fn launches[N_KERNELS] = {relu, add, matmul};

/* Whether `a` is as the last dimensions of `y`, so that it repeats in it: a scalar, a bias. */
static int repeats_in(const devbay_tensor *a, const devbay_tensor *y) {
    return a->rank == 0 || (a->rank <= y->rank &&
            memcmp(a->shape, y->shape + y->rank - a->rank, a->rank * sizeof(int64_t)) == 0);
}

static devbay_status prepare(devbay_instance *instance, const devbay_prepare_desc *desc,
        devbay_prepared *out, devbay_error_detail *error) {
    uint64_t n_inputs = desc->inputs.len;
    if (desc->kernel_idx >= N_KERNELS || n_inputs != kernels[desc->kernel_idx].n_inputs_max ||
            desc->outputs.len != 1) {
        return devbay_fail(error, DEVBAY_STATUS_INVALID, "no kernel %u of %llu inputs and 1 output",
                (unsigned)desc->kernel_idx, (unsigned long long)n_inputs);
    }
    struct work work = {.k = 0};
    const devbay_tensor *of[3] = {NULL}; /* The inputs, then the output. */
    for (uint64_t i = 0; i <= n_inputs; i++) {
        of[i] = devbay_operand(i < n_inputs ? &desc->inputs : &desc->outputs, i % n_inputs);
        if (of[i] == NULL || !devbay_is_dense(of[i], DEVBAY_DTYPE_FLOAT, 32)) {
            return devbay_fail(error, DEVBAY_STATUS_UNSUPPORTED, "expected dense f32");
        }
        if (!devbay_n_elements(of[i], ALLOC_MAX / sizeof(float), &work.n[i])) {
            return devbay_fail(error, DEVBAY_STATUS_UNSUPPORTED, "an operand larger than a buffer");
        }
    }
    /* None of these ops has attributes: one that is there changes what the op does. */
    const devbay_attr *attr = devbay_unknown_attr(&desc->attrs, NULL, 0);
    if (attr != NULL) {
        return devbay_fail(error, DEVBAY_STATUS_UNSUPPORTED, "the attribute %.*s",
                (int)attr->name.len, attr->name.ptr);
    }
    const devbay_tensor *a = of[0], *b = of[n_inputs - 1], *y = of[n_inputs];
    if (desc->kernel_idx != MATMUL) {
        if (!repeats_in(a, y) || !repeats_in(b, y) || (a->rank != y->rank && b->rank != y->rank)) {
            return devbay_fail(error, DEVBAY_STATUS_UNSUPPORTED, "expected one shape or its last extents");
        }
    } else if (a->rank != 2 || b->rank != 2 || y->rank != 2 || a->shape[1] != b->shape[0] ||
               y->shape[0] != a->shape[0] || y->shape[1] != b->shape[1]) {
        return devbay_fail(error, DEVBAY_STATUS_UNSUPPORTED, "expected [m,k] by [k,n] to be [m,n]");
    } else {
        work.k = (uint64_t)a->shape[1];
        work.columns = (uint64_t)b->shape[1];
    }
    out->state = malloc(sizeof(work));
    if (out->state == NULL) {
        return devbay_fail(error, DEVBAY_STATUS_OUT_OF_MEMORY, "no memory for a prepared kernel");
    }
    memcpy(out->state, &work, sizeof(work));
    out->launch = launches[desc->kernel_idx];
    return DEVBAY_STATUS_OK;
}

static void unprepare(devbay_instance *instance, devbay_prepared *prepared) {
    free(prepared->state);
}

static const devbay_plugin_table table = {
        .struct_size = sizeof(devbay_plugin_table), .create = create, .destroy = destroy,
        .devices = devices, .buffer_alloc = buffer_alloc, .buffer_free = buffer_free,
        .stream_create = stream_create, .stream_destroy = stream_destroy, .copy = copy,
        .prepare = prepare, .unprepare = unprepare,
};

static const devbay_str profiles[] = {DEVBAY_STR("base"), DEVBAY_STR("kernels")};

static const devbay_plugin_info info = {
        .struct_size = sizeof(devbay_plugin_info), .threading = DEVBAY_THREADING_FREE,
        .abi_minor_min = DEVBAY_ABI_MINOR_MIN, .abi_minor_max = DEVBAY_ABI_MINOR,
        .name = DEVBAY_STR("template-plugin"),
        .vendor = DEVBAY_STR("your company"), .version = DEVBAY_STR("0.1.0"),
        .table = &table, .profiles = DEVBAY_LIST(profiles), .kernels = DEVBAY_LIST(kernels),
};

const devbay_plugin_info *DEVBAY_ENTRY(void) {
    return &info;
}
