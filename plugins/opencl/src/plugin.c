/* plugin.c - instances, devices and memory. */
#include "plugin.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Elements are counted in 32 bits, and offsets are handed to kernels so. */
#define ALLOC_MAX (UINT64_C(1) << 32)

devbay_status fail(devbay_error_detail *error, devbay_status status, const char *form, ...) {
    if (error == NULL) {
        return status;
    }
    char text[1024];
    va_list arguments;
    va_start(arguments, form);
    int written = vsnprintf(text, sizeof(text), form, arguments);
    va_end(arguments);
    uint64_t len = written < 0 ? 0 : strlen(text);
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

devbay_status status_of(cl_int code) {
    switch (code) {
    case CL_SUCCESS:
        return DEVBAY_STATUS_OK;
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
    case CL_OUT_OF_RESOURCES:
    case CL_OUT_OF_HOST_MEMORY:
        return DEVBAY_STATUS_OUT_OF_MEMORY;
    case CL_DEVICE_NOT_AVAILABLE:
        return DEVBAY_STATUS_DEVICE_LOST;
    case CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST:
        return DEVBAY_STATUS_ABORTED;
    default:
        return DEVBAY_STATUS_INTERNAL;
    }
}

devbay_status fail_cl(devbay_error_detail *error, cl_int code, const char *what) {
    if (error != NULL && DEVBAY_HAS(devbay_error_detail, error, native_code)) {
        error->native_code = code;
    }
    return fail(error, status_of(code), "%s: %s (%d)", what, driver_error(code), code);
}

void say(const devbay_instance *instance, uint32_t level, const char *form, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, form);
    int written = vsnprintf(text, sizeof(text), form, arguments);
    va_end(arguments);
    if (written >= 0) {
        instance->host->log(instance->host->ctx, level, (devbay_str){text, strlen(text)});
    }
}

/* What create is asked for. */
struct settings {
    cl_device_type types;
    int has_checks;
    uint64_t memory_limit;
};

static int same(devbay_str text, const char *word) {
    return text.len == strlen(word) && memcmp(text.ptr, word, text.len) == 0;
}

/* Reads a decimal number of bytes. */
static devbay_status read_bytes(
        const devbay_key_value *option, uint64_t *out, devbay_error_detail *error) {
    uint64_t bytes = 0;
    int is_number = option->value.len > 0;
    for (uint64_t i = 0; is_number && i < option->value.len; i++) {
        uint64_t digit = (uint64_t)(unsigned char)option->value.ptr[i] - '0';
        is_number = digit <= 9 && bytes <= (UINT64_MAX - digit) / 10;
        bytes = bytes * 10 + digit;
    }
    if (!is_number) {
        return fail(error, DEVBAY_STATUS_INVALID, "option %.*s is a number of bytes, found %.*s",
                (int)option->key.len, option->key.ptr, (int)option->value.len, option->value.ptr);
    }
    *out = bytes;
    return DEVBAY_STATUS_OK;
}

/* Takes bytes of what buffers of the device may have together; 0 if there are not so many. */
static int take_bytes(devbay_device *device, uint64_t size_bytes) {
    uint64_t limit = device->instance->memory_limit;
    uint_fast64_t used = atomic_load(&device->bytes_in_use);
    do {
        if (size_bytes > limit || used > limit - size_bytes) {
            return 0;
        }
    } while (!atomic_compare_exchange_weak(&device->bytes_in_use, &used, used + size_bytes));
    return 1;
}

static devbay_status read_settings(
        const devbay_create_desc *desc, struct settings *settings, devbay_error_detail *error) {
    settings->types = CL_DEVICE_TYPE_ALL;
    settings->has_checks = 1;
    settings->memory_limit = UINT64_MAX;
    for (uint64_t i = 0; i < desc->options.len; i++) {
        const devbay_key_value *option = DEVBAY_AT(&desc->options, i);
        if (same(option->key, "checks")) {
            settings->has_checks = same(option->value, "yes");
            if (!settings->has_checks && !same(option->value, "no")) {
                return fail(error, DEVBAY_STATUS_INVALID, "option checks is yes or no, found %.*s",
                        (int)option->value.len, option->value.ptr);
            }
            continue;
        }
        if (same(option->key, "devbay.memory_limit")) {
            TRY(read_bytes(option, &settings->memory_limit, error));
            continue;
        }
        if (DEVBAY_IS_HOSTS(option->key)) {
            continue;
        }
        if (!same(option->key, "devices")) {
            return fail(error, DEVBAY_STATUS_INVALID,
                    "unknown option %.*s, there are devices and checks", (int)option->key.len,
                    option->key.ptr);
        }
        if (same(option->value, "all")) {
            settings->types = CL_DEVICE_TYPE_ALL;
        } else if (same(option->value, "gpu")) {
            settings->types = CL_DEVICE_TYPE_GPU;
        } else if (same(option->value, "cpu")) {
            settings->types = CL_DEVICE_TYPE_CPU;
        } else if (same(option->value, "accelerator")) {
            settings->types = CL_DEVICE_TYPE_ACCELERATOR;
        } else {
            return fail(error, DEVBAY_STATUS_INVALID,
                    "option devices is all, gpu, cpu or accelerator, found %.*s",
                    (int)option->value.len, option->value.ptr);
        }
    }
    return DEVBAY_STATUS_OK;
}

static uint32_t kind_of(cl_device_type type) {
    if ((type & CL_DEVICE_TYPE_GPU) != 0) {
        return DEVBAY_DEVICE_KIND_GPU;
    }
    return (type & CL_DEVICE_TYPE_CPU) != 0 ? DEVBAY_DEVICE_KIND_CPU : DEVBAY_DEVICE_KIND_OTHER;
}

/* Fills in one device; a code of OpenCL's if it cannot be used. */
static cl_int open_device(devbay_instance *instance, cl_platform_id platform, uint32_t platform_idx,
        uint32_t device_idx, cl_device_id cl, devbay_device *device, devbay_device_info *info) {
    const struct driver *driver = &instance->driver;
    cl_device_type type = 0;
    cl_ulong bytes_total = 0, alloc_max = 0;
    cl_bool is_available = CL_FALSE, has_compiler = CL_FALSE;
    char version[80] = "";
    driver->clGetDeviceInfo(cl, CL_DEVICE_TYPE, sizeof(type), &type, NULL);
    driver->clGetDeviceInfo(cl, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof(bytes_total), &bytes_total, NULL);
    driver->clGetDeviceInfo(cl, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof(alloc_max), &alloc_max, NULL);
    driver->clGetDeviceInfo(cl, CL_DEVICE_AVAILABLE, sizeof(is_available), &is_available, NULL);
    driver->clGetDeviceInfo(
            cl, CL_DEVICE_COMPILER_AVAILABLE, sizeof(has_compiler), &has_compiler, NULL);
    driver->clGetDeviceInfo(cl, CL_DEVICE_NAME, sizeof(device->name) - 1, device->name, NULL);
    driver->clGetDeviceInfo(cl, CL_DRIVER_VERSION, sizeof(version) - 1, version, NULL);
    driver->clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof(device->driver_name) / 2,
            device->driver_name, NULL);
    size_t len = strlen(device->driver_name);
    snprintf(device->driver_name + len, sizeof(device->driver_name) - len, " %s", version);
    if (!is_available) {
        return CL_DEVICE_NOT_AVAILABLE;
    }
    if (!has_compiler) {
        return CL_COMPILER_NOT_AVAILABLE;
    }
    cl_int code = CL_SUCCESS;
    device->context = driver->clCreateContext(NULL, 1, &cl, NULL, NULL, &code);
    if (code != CL_SUCCESS) {
        return code;
    }
    device->instance = instance;
    device->cl = cl;
    /* OpenCL 1.2 has no name that stays the same; drivers list their devices in one order. */
    snprintf(device->id, sizeof(device->id), "platform-%u-device-%u", (unsigned)platform_idx,
            (unsigned)device_idx);
    pthread_mutex_init(&device->programs_lock, NULL);
    device->space = (devbay_memory_space){
            .struct_size = sizeof(devbay_memory_space),
            .kind = DEVBAY_SPACE_DEVICE,
            .bytes_total = bytes_total,
            .alloc_max = alloc_max < ALLOC_MAX ? alloc_max : ALLOC_MAX,
            .alloc_align = 64,
            /* Kernels are given an offset in elements beside each buffer, so that operands lie as
             * close as vectors of four floats may. */
            .bind_align = 16,
            .copy_align = 1,
            .copy_granule = 1,
    };
    *info = (devbay_device_info){
            .struct_size = sizeof(devbay_device_info),
            .kind = kind_of(type),
            .handle = device,
            .id = {device->id, strlen(device->id)},
            .name = {device->name, strlen(device->name)},
            .spaces = {&device->space, 1, sizeof(device->space)},
            .driver = {device->driver_name, strlen(device->driver_name)},
    };
    return CL_SUCCESS;
}

static void destroy(devbay_instance *instance) {
    for (uint32_t i = 0; i < instance->n_devices; i++) {
        devbay_device *device = &instance->devices[i];
        programs_free(device);
        pthread_mutex_destroy(&device->programs_lock);
        instance->driver.clReleaseContext(device->context);
    }
    while (instance->lists != NULL) {
        struct device_list *next = instance->lists->next;
        free(instance->lists);
        instance->lists = next;
    }
    pthread_mutex_destroy(&instance->lists_lock);
    pthread_mutex_destroy(&instance->slots_lock);
    free(instance->free_slots);
    free(instance->devices);
    free(instance->infos);
    free(instance);
}

#define PLATFORMS_MAX 16
#define DEVICES_MAX 32

/* Opens all devices of the types that are wanted. */
static devbay_status open_devices(
        devbay_instance *instance, const struct settings *settings, devbay_error_detail *error) {
    const struct driver *driver = &instance->driver;
    cl_platform_id platforms[PLATFORMS_MAX];
    cl_uint n_platforms = 0;
    cl_int code = driver->clGetPlatformIDs(PLATFORMS_MAX, platforms, &n_platforms);
    if (code != CL_SUCCESS || n_platforms == 0) {
        return fail(error, DEVBAY_STATUS_UNAVAILABLE,
                "OpenCL's loader is there, but no driver (no file in /etc/OpenCL/vendors)");
    }
    n_platforms = n_platforms < PLATFORMS_MAX ? n_platforms : PLATFORMS_MAX;
    instance->devices = calloc(DEVICES_MAX, sizeof(*instance->devices));
    instance->infos = calloc(DEVICES_MAX, sizeof(*instance->infos));
    if (instance->devices == NULL || instance->infos == NULL) {
        return fail(error, DEVBAY_STATUS_OUT_OF_MEMORY, "no memory for devices");
    }
    for (cl_uint p = 0; p < n_platforms; p++) {
        cl_device_id found[DEVICES_MAX];
        cl_uint n_found = 0;
        code = driver->clGetDeviceIDs(platforms[p], settings->types, DEVICES_MAX, found, &n_found);
        n_found = code != CL_SUCCESS ? 0 : n_found < DEVICES_MAX ? n_found : DEVICES_MAX;
        for (cl_uint i = 0; i < n_found && instance->n_devices < DEVICES_MAX; i++) {
            uint32_t at = instance->n_devices;
            devbay_device *device = &instance->devices[at];
            code = open_device(
                    instance, platforms[p], p, i, found[i], device, &instance->infos[at]);
            if (code != CL_SUCCESS) {
                say(instance, DEVBAY_LOG_WARN, "%s is left out: %s", device->name,
                        driver_error(code));
                memset(device, 0, sizeof(*device));
                continue;
            }
            instance->n_devices++;
        }
    }
    return DEVBAY_STATUS_OK;
}

static devbay_status create(
        const devbay_create_desc *desc, devbay_instance **out, devbay_error_detail *error) {
    if (desc->abi_minor < DEVBAY_ABI_MINOR_MIN || desc->abi_minor > DEVBAY_ABI_MINOR) {
        return fail(error, DEVBAY_STATUS_UNSUPPORTED, "ABI minor %u, expected %u to %u",
                (unsigned)desc->abi_minor, DEVBAY_ABI_MINOR_MIN, DEVBAY_ABI_MINOR);
    }
    struct settings settings;
    TRY(read_settings(desc, &settings, error));
    devbay_instance *instance = calloc(1, sizeof(*instance));
    if (instance == NULL) {
        return fail(error, DEVBAY_STATUS_OUT_OF_MEMORY, "no memory for an instance");
    }
    instance->host = desc->host;
    instance->has_checks = settings.has_checks;
    instance->memory_limit = settings.memory_limit;
    pthread_mutex_init(&instance->slots_lock, NULL);
    pthread_mutex_init(&instance->lists_lock, NULL);
    const char *missing = driver_open(&instance->driver);
    devbay_status status =
            missing != NULL ? fail(error, DEVBAY_STATUS_UNAVAILABLE,
                                      "OpenCL's loader was not found: %s", missing)
                            : open_devices(instance, &settings, error);
    if (status != DEVBAY_STATUS_OK) {
        destroy(instance);
        return status;
    }
    *out = instance;
    return DEVBAY_STATUS_OK;
}

/* Those that are available and always were. None comes back, so that as many are the same. */
static devbay_status devices(
        devbay_instance *instance, devbay_list *out, devbay_error_detail *error) {
    devbay_status status = DEVBAY_STATUS_OK;
    pthread_mutex_lock(&instance->lists_lock);
    uint32_t n = 0;
    for (uint32_t i = 0; i < instance->n_devices; i++) {
        devbay_device *device = &instance->devices[i];
        cl_bool is_available = CL_FALSE;
        cl_int code = instance->driver.clGetDeviceInfo(device->cl, CL_DEVICE_AVAILABLE,
                sizeof(is_available), &is_available, NULL);
        device->is_gone |= code != CL_SUCCESS || !is_available;
        n += !device->is_gone;
    }
    struct device_list *list = instance->lists;
    if (list == NULL || list->n != n) {
        list = malloc(sizeof(*list) + n * sizeof(list->infos[0]));
        if (list == NULL) {
            status = fail(error, DEVBAY_STATUS_OUT_OF_MEMORY, "no memory for a list of devices");
        } else {
            *list = (struct device_list){.next = instance->lists};
            for (uint32_t i = 0; i < instance->n_devices; i++) {
                if (!instance->devices[i].is_gone) {
                    list->infos[list->n++] = instance->infos[i];
                }
            }
            instance->lists = list;
        }
    }
    if (list != NULL) {
        *out = (devbay_list){list->infos, list->n, sizeof(list->infos[0])};
    }
    pthread_mutex_unlock(&instance->lists_lock);
    return status;
}

static devbay_status buffer_alloc(devbay_device *device, const devbay_alloc_desc *desc,
        devbay_allocation *out, devbay_error_detail *error) {
    if (desc->space_idx != 0 || (desc->align & (desc->align - 1)) != 0) {
        return fail(error, DEVBAY_STATUS_INVALID,
                "space %u of 1, or an alignment of no power of two", (unsigned)desc->space_idx);
    }
    if (desc->size_bytes > device->space.alloc_max) {
        return fail(error, DEVBAY_STATUS_OUT_OF_MEMORY, "%llu bytes at once, the most is %llu",
                (unsigned long long)desc->size_bytes, (unsigned long long)device->space.alloc_max);
    }
    if (!take_bytes(device, desc->size_bytes)) {
        return fail(error, DEVBAY_STATUS_OUT_OF_MEMORY,
                "%llu bytes beside %llu, devbay.memory_limit is %llu",
                (unsigned long long)desc->size_bytes,
                (unsigned long long)atomic_load(&device->bytes_in_use),
                (unsigned long long)device->instance->memory_limit);
    }
    devbay_buffer *buffer = calloc(1, sizeof(*buffer));
    if (buffer == NULL) {
        atomic_fetch_sub(&device->bytes_in_use, desc->size_bytes);
        return fail(error, DEVBAY_STATUS_OUT_OF_MEMORY, "no memory for a buffer");
    }
    /* A buffer of no bytes is legal for devbay, and is none for OpenCL. */
    uint64_t size_bytes = desc->size_bytes > 0 ? desc->size_bytes : 1;
    cl_int code = CL_SUCCESS;
    buffer->memory = driver_of(device)->clCreateBuffer(
            device->context, CL_MEM_READ_WRITE, size_bytes, NULL, &code);
    if (code != CL_SUCCESS) {
        free(buffer);
        atomic_fetch_sub(&device->bytes_in_use, desc->size_bytes);
        /* A size that OpenCL does not like is more than it has. */
        code = code == CL_INVALID_BUFFER_SIZE ? CL_MEM_OBJECT_ALLOCATION_FAILURE : code;
        return fail_cl(error, code, "an allocation");
    }
    buffer->device = device;
    buffer->size_bytes = desc->size_bytes;
    out->buffer = buffer;
    out->base = 0;
    out->size_bytes = desc->size_bytes;
    return DEVBAY_STATUS_OK;
}

static void buffer_free(devbay_buffer *buffer) {
    atomic_fetch_sub(&buffer->device->bytes_in_use, buffer->size_bytes);
    driver_of(buffer->device)->clReleaseMemObject(buffer->memory);
    free(buffer);
}

static devbay_status memory_info(devbay_device *device, uint32_t space_idx, devbay_memory_info *out,
        devbay_error_detail *error) {
    if (space_idx != 0) {
        return fail(error, DEVBAY_STATUS_INVALID, "space %u of 1", (unsigned)space_idx);
    }
    uint64_t in_use = atomic_load(&device->bytes_in_use);
    uint64_t total = device->space.bytes_total;
    if (total > device->instance->memory_limit) {
        total = device->instance->memory_limit;
    }
    out->bytes_in_use = in_use;
    out->bytes_available = total > in_use ? total - in_use : 0;
    return DEVBAY_STATUS_OK;
}

static const void *get_extension(devbay_instance *instance, uint32_t id, uint32_t min_revision) {
    static const devbay_fault_table fault = {
            .struct_size = sizeof(devbay_fault_table),
            .stream_fail = stream_fail,
    };
    (void)instance;
    return id == DEVBAY_EXTENSION_FAULT && min_revision <= DEVBAY_FAULT_REVISION ? &fault : NULL;
}

const devbay_plugin_table plugin_table = {
        .struct_size = sizeof(devbay_plugin_table),
        .create = create,
        .destroy = destroy,
        .devices = devices,
        .buffer_alloc = buffer_alloc,
        .buffer_free = buffer_free,
        .stream_create = stream_create,
        .stream_destroy = stream_destroy,
        .copy = stream_copy,
        .stream_signal = stream_signal,
        .stream_reached = stream_reached,
        .prepare = prepare,
        .unprepare = unprepare,
        .stream_wait = stream_wait,
        .stream_on_reached = stream_on_reached,
        .stream_host_wait = stream_host_wait,
        .stream_flush = stream_flush,
        .stream_error = stream_error,
        .kernel_cost = kernel_cost,
        .pack = pack,
        .get_extension = get_extension,
        .memory_info = memory_info,
};
