/* minimal.c - the smallest useful devbay plugin: one device, one kernel. Start yours from it.
 *
 *     cc -std=c11 -O2 -Wall -Wextra -pedantic -shared -fPIC -fvisibility=hidden -pthread \
 *         -I plugin-api/include -Wl,-z,defs -Wl,-soname,libdevbay_plugin_minimal.so \
 *         -o libdevbay_plugin_minimal.so conformance/fixtures/minimal.c -lm
 *
 * The device is the processor: work is done when the call returns (DEVBAY_DEVICE_INLINE), buffers
 * are the C library's memory. All but the entry at the end is static, all state hangs from the
 * instance, no struct is read or written beyond the size that it states (B4).
 */
#include "devbay_plugin.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALLOC_ALIGN UINT64_C(64)
#define ALLOC_MAX (UINT64_C(1) << 30)

/* The one device has no state of its own: its handle is the instance's. */
struct devbay_instance {
    devbay_device_info device;
};

/* Stands before the memory, one alignment in front of it. */
struct devbay_buffer {
    uint64_t size_bytes;
};

struct devbay_stream {
    devbay_device *device;
};

struct relu_state {
    uint64_t n_elements;
};

/* Writes what happened where the host asked for it (B18), and gives the status back. */
static devbay_status fail(devbay_error_detail *error, devbay_status status, const char *form, ...) {
    if (error == NULL) {
        return status;
    }
    char text[256];
    va_list arguments;
    va_start(arguments, form);
    uint64_t len = vsnprintf(text, sizeof(text), form, arguments) < 0 ? 0 : strlen(text);
    va_end(arguments);
    error->status = status;
    error->text_len = len;
    if (len > error->text_capacity) {
        len = error->text_capacity;
        /* A character of several bytes is not cut in half. */
        while (len > 0 && ((unsigned char)text[len] & 0xC0) == 0x80) {
            len--;
        }
    }
    if (error->text != NULL) {
        memcpy(error->text, text, len);
    }
    return status;
}

static const devbay_memory_space spaces[] = {{
        .struct_size = sizeof(devbay_memory_space),
        .kind = DEVBAY_SPACE_UNIFIED,
        .flags = DEVBAY_SPACE_HOST_VISIBLE | DEVBAY_SPACE_ADDRESSABLE,
        .alloc_max = ALLOC_MAX,
        .alloc_align = ALLOC_ALIGN,
        .bind_align = sizeof(float),
        .copy_align = 1,
        .copy_granule = 1,
}};

static devbay_status create(
        const devbay_create_desc *desc, devbay_instance **out, devbay_error_detail *error) {
    if (desc->abi_minor < DEVBAY_ABI_MINOR_MIN || desc->abi_minor > DEVBAY_ABI_MINOR) {
        return fail(error, DEVBAY_STATUS_UNSUPPORTED, "ABI minor %u, expected %u to %u",
                (unsigned)desc->abi_minor, DEVBAY_ABI_MINOR_MIN, DEVBAY_ABI_MINOR);
    }
    for (uint64_t i = 0; i < desc->options.len; i++) {
        const devbay_key_value *option = DEVBAY_AT(&desc->options, i);
        if (!DEVBAY_IS_HOSTS(option->key)) {
            return fail(error, DEVBAY_STATUS_INVALID, "unknown option %.*s, there are none",
                    (int)option->key.len, option->key.ptr);
        }
    }
    devbay_instance *instance = calloc(1, sizeof(*instance));
    if (instance == NULL) {
        return fail(error, DEVBAY_STATUS_OUT_OF_MEMORY, "no memory for an instance");
    }
    instance->device = (devbay_device_info){
            .struct_size = sizeof(devbay_device_info),
            .kind = DEVBAY_DEVICE_KIND_OTHER,
            .handle = (devbay_device *)instance,
            .id = DEVBAY_STR("0"),
            .name = DEVBAY_STR("minimal device"),
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
    (void)error;
    *out = (devbay_list){&instance->device, 1, sizeof(instance->device)};
    return DEVBAY_STATUS_OK;
}

static devbay_status buffer_alloc(devbay_device *device, const devbay_alloc_desc *desc,
        devbay_allocation *out, devbay_error_detail *error) {
    (void)device;
    uint64_t align = desc->align > ALLOC_ALIGN ? desc->align : ALLOC_ALIGN;
    if (desc->space_idx != 0 || (desc->align & (desc->align - 1)) != 0 || align > ALLOC_MAX) {
        return fail(error, DEVBAY_STATUS_INVALID,
                "space %u of 1, or an alignment of no power of two", (unsigned)desc->space_idx);
    }
    if (desc->size_bytes > ALLOC_MAX) {
        return fail(error, DEVBAY_STATUS_OUT_OF_MEMORY, "%llu bytes at once, the most is %llu",
                (unsigned long long)desc->size_bytes, (unsigned long long)ALLOC_MAX);
    }
    /* aligned_alloc wants a multiple of the alignment. */
    devbay_buffer *buffer = aligned_alloc(align, (desc->size_bytes / align + 2) * align);
    if (buffer == NULL) {
        return fail(error, DEVBAY_STATUS_OUT_OF_MEMORY, "no memory for %llu bytes",
                (unsigned long long)desc->size_bytes);
    }
    buffer->size_bytes = desc->size_bytes;
    out->buffer = buffer;
    out->base = (uint64_t)(uintptr_t)buffer + align;
    out->size_bytes = desc->size_bytes;
    return DEVBAY_STATUS_OK;
}

static void buffer_free(devbay_buffer *buffer) {
    free(buffer);
}

static devbay_status stream_create(devbay_device *device, const devbay_stream_desc *desc,
        devbay_stream **out, devbay_error_detail *error) {
    (void)desc;
    devbay_stream *stream = calloc(1, sizeof(*stream));
    if (stream == NULL) {
        return fail(error, DEVBAY_STATUS_OUT_OF_MEMORY, "no memory for a stream");
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
    (void)stream;
    int from_buffer = desc->kind != DEVBAY_COPY_HOST_TO_BUFFER;
    int to_buffer = desc->kind != DEVBAY_COPY_BUFFER_TO_HOST;
    uint64_t size = desc->size_bytes;
    uint64_t src = from_buffer ? desc->src.addr : (uint64_t)(uintptr_t)desc->host_src;
    uint64_t dst = to_buffer ? desc->dst.addr : (uint64_t)(uintptr_t)desc->host_dst;
    if (size == 0) {
        return DEVBAY_STATUS_OK;
    }
    if (desc->kind < DEVBAY_COPY_HOST_TO_BUFFER || desc->kind > DEVBAY_COPY_BUFFER_TO_BUFFER ||
            src == 0 || dst == 0 || (src < dst + size && dst < src + size) ||
            (from_buffer && !in_range(&desc->src, size)) ||
            (to_buffer && !in_range(&desc->dst, size))) {
        return DEVBAY_STATUS_INVALID;
    }
    memcpy((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, size);
    return DEVBAY_STATUS_OK;
}

/* Everything was checked by prepare: a launch checks nothing (B21). */
static devbay_status relu(const void *state, devbay_stream *stream, const devbay_buffer_ref *refs,
        const int64_t *dims) {
    (void)stream;
    (void)dims;
    const struct relu_state *relu = state;
    const float *x = (const float *)(uintptr_t)refs[0].addr;
    float *y = (float *)(uintptr_t)refs[1].addr;
    for (uint64_t i = 0; i < relu->n_elements; i++) {
        /* Not `x > 0 ? x : 0`: a NaN stays one. */
        y[i] = x[i] < 0.0f ? 0.0f : x[i];
    }
    return DEVBAY_STATUS_OK;
}

static int is_dense_f32(const devbay_tensor *tensor) {
    int has_strides = DEVBAY_HAS(devbay_tensor, tensor, strides) && tensor->strides != NULL;
    return (tensor->flags & DEVBAY_TENSOR_ABSENT) == 0 && !has_strides &&
           tensor->dtype.code == DEVBAY_DTYPE_FLOAT && tensor->dtype.bits == 32;
}

static devbay_status prepare(devbay_instance *instance, const devbay_prepare_desc *desc,
        devbay_prepared *out, devbay_error_detail *error) {
    (void)instance;
    const devbay_tensor *x = desc->inputs.ptr;
    const devbay_tensor *y = desc->outputs.ptr;
    if (desc->kernel_idx != 0 || desc->device == NULL || desc->inputs.len != 1 ||
            desc->outputs.len != 1) {
        return fail(error, DEVBAY_STATUS_INVALID, "kernel %u, expected kernel 0, 1 input, 1 output",
                (unsigned)desc->kernel_idx);
    }
    if (!is_dense_f32(x) || !is_dense_f32(y) || desc->attrs.len != 0) {
        return fail(error, DEVBAY_STATUS_UNSUPPORTED, "Relu takes dense f32 alone, no attributes");
    }
    if (x->rank != y->rank || (x->rank > 0 && memcmp(x->shape, y->shape, x->rank * 8u) != 0)) {
        return fail(error, DEVBAY_STATUS_INVALID, "Relu's input and output differ in shape");
    }
    uint64_t n = 1;
    for (uint32_t i = 0; i < x->rank; i++) {
        uint64_t extent = (uint64_t)x->shape[i];
        if (extent != 0 && n > ALLOC_MAX / extent) {
            return fail(error, DEVBAY_STATUS_UNSUPPORTED, "Relu of more elements than memory has");
        }
        n *= extent;
    }
    struct relu_state *state = malloc(sizeof(*state));
    if (state == NULL) {
        return fail(error, DEVBAY_STATUS_OUT_OF_MEMORY, "no memory for a prepared kernel");
    }
    state->n_elements = n;
    out->launch = relu;
    out->state = state;
    return DEVBAY_STATUS_OK;
}

static void unprepare(devbay_instance *instance, devbay_prepared *prepared) {
    (void)instance;
    free(prepared->state);
}

static const devbay_plugin_table table = {
        .struct_size = sizeof(devbay_plugin_table),
        .create = create,
        .destroy = destroy,
        .devices = devices,
        .buffer_alloc = buffer_alloc,
        .buffer_free = buffer_free,
        .stream_create = stream_create,
        .stream_destroy = stream_destroy,
        .copy = copy,
        .prepare = prepare,
        .unprepare = unprepare,
};

static const devbay_dtype f32[] = {{DEVBAY_DTYPE_FLOAT, 32, 1}};
static const devbay_type_var typevars[] = {{sizeof(devbay_type_var), 1, f32}};
static const uint8_t operand_typevars[] = {0};
static const int16_t in_place[] = {0};

static const devbay_kernel_info kernels[] = {{
        .struct_size = sizeof(devbay_kernel_info),
        .since_version = 14,
        .op = DEVBAY_STR("Relu"),
        .n_inputs_min = 1,
        .n_inputs_max = 1,
        .n_outputs_min = 1,
        .n_outputs_max = 1,
        .typevars = DEVBAY_LIST(typevars),
        .input_typevars = DEVBAY_LIST(operand_typevars),
        .output_typevars = DEVBAY_LIST(operand_typevars),
        .flags = DEVBAY_KERNEL_DETERMINISTIC,
        .in_place = DEVBAY_LIST(in_place),
}};

static const devbay_str profiles[] = {DEVBAY_STR("base")};

static const devbay_plugin_info info = {
        .struct_size = sizeof(devbay_plugin_info),
        .abi_minor_min = DEVBAY_ABI_MINOR_MIN,
        .abi_minor_max = DEVBAY_ABI_MINOR,
        .threading = DEVBAY_THREADING_FREE,
        .name = DEVBAY_STR("minimal"),
        .vendor = DEVBAY_STR("devbay"),
        .version = DEVBAY_STR("1.0"),
        .table = &table,
        .profiles = DEVBAY_LIST(profiles),
        .kernels = DEVBAY_LIST(kernels),
};

const devbay_plugin_info *DEVBAY_ENTRY(void) {
    return &info;
}
