/* plugin.h - what the files of this plugin share: its objects, and how errors are told.
 *
 *   driver.c   finds OpenCL
 *   plugin.c   instances, devices and memory
 *   stream.c   queues as streams, events as points of a timeline
 *   program.c  OpenCL C to programs, kept on disk
 *   keep.c     files that are there whole or not at all
 *   node.c     what a kernel is prepared for
 *   step.c     prepared kernels and their launches
 *   kernels.c  the entry, and the table of kernels
 *   op_*.c     kernels by kind: OpenCL C, and what it is given
 */
#ifndef PLUGIN_H
#define PLUGIN_H

#include "devbay_plugin.h"
#include "driver.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* Leaves a function with the status of a call that failed. */
#define TRY(call) \
    do { \
        devbay_status try_status = (call); \
        if (try_status != DEVBAY_STATUS_OK) { \
            return try_status; \
        } \
    } while (0)

struct program;
struct record;

/* A list of devices that the host was given. */
struct device_list {
    struct device_list *next;
    uint32_t n;
    devbay_device_info infos[];
};

struct devbay_instance {
    const devbay_host_api *host;
    struct driver driver;
    /* Whether kernels check indices in their data. */
    int has_checks;
    /* The most bytes that buffers of one device may have together. */
    uint64_t memory_limit;
    uint32_t n_devices;
    devbay_device *devices;
    devbay_device_info *infos;
    /* What was listed, the newest first; each stays as it is. */
    pthread_mutex_t lists_lock;
    struct device_list *lists;
    /* Which slots prepared kernels have: streams keep what they need of a kernel by its slot. */
    pthread_mutex_t slots_lock;
    uint32_t n_slots;
    uint32_t *free_slots;
    uint32_t n_free_slots;
    uint64_t n_prepared;
};

struct devbay_device {
    devbay_instance *instance;
    cl_device_id cl;
    cl_context context;
    char id[64];
    char name[160];
    char driver_name[160];
    devbay_memory_space space;
    atomic_uint_fast64_t bytes_in_use;
    /* The driver has said that it is not available: it stays so, whatever the driver says later. */
    int is_gone;
    pthread_mutex_t programs_lock;
    struct program *programs;
};

struct devbay_buffer {
    devbay_device *device;
    cl_mem memory;
    uint64_t size_bytes;
};

/* A driver's functions, by a device. */
static inline const struct driver *driver_of(const devbay_device *device) {
    return &device->instance->driver;
}

/* Writes what happened where the host asked for it (B18), and gives the status back. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
devbay_status fail(devbay_error_detail *error, devbay_status status, const char *form, ...);

/* The same for a call of OpenCL's that failed; `what` is what it was to do. */
devbay_status fail_cl(devbay_error_detail *error, cl_int code, const char *what);

/* The status for a code of OpenCL's. */
devbay_status status_of(cl_int code);

/* Hands a message to the application. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
void say(const devbay_instance *instance, uint32_t level, const char *form, ...);

/* The functions of the table, by file. */
devbay_status stream_create(devbay_device *device, const devbay_stream_desc *desc,
        devbay_stream **out, devbay_error_detail *error);
void stream_destroy(devbay_stream *stream);
devbay_status stream_copy(devbay_stream *stream, const devbay_copy_desc *desc);
devbay_status stream_signal(devbay_stream *stream, uint64_t value);
devbay_status stream_reached(devbay_stream *stream, uint64_t *out_value);
devbay_status stream_wait(devbay_stream *stream, devbay_stream *other, uint64_t value);
devbay_status stream_on_reached(
        devbay_stream *stream, uint64_t value, devbay_done_fn done, void *arg);
devbay_status stream_host_wait(devbay_stream *stream, uint64_t value, uint64_t timeout_ns);
devbay_status stream_flush(devbay_stream *stream);
devbay_status stream_error(devbay_stream *stream, devbay_error_detail *error);
devbay_status prepare(devbay_instance *instance, const devbay_prepare_desc *desc,
        devbay_prepared *out, devbay_error_detail *error);
void unprepare(devbay_instance *instance, devbay_prepared *prepared);
devbay_status pack(devbay_instance *instance, const devbay_prepared *prepared, uint32_t input_idx,
        const devbay_tensor *src, void *dst, devbay_error_detail *error);
devbay_status stream_fail(devbay_stream *stream, devbay_status status);
devbay_status kernel_cost(devbay_instance *instance, const devbay_prepare_desc *desc,
        devbay_kernel_cost *out, devbay_error_detail *error);

extern const devbay_plugin_table plugin_table;

/* What launches need of a stream (stream.c). */

/* Its queue; NULL and the status if it has failed. */
cl_command_queue stream_queue(devbay_stream *stream, devbay_status *status);

/* Its device. */
devbay_device *stream_device(const devbay_stream *stream);

/* Where it keeps what it needs of the kernel in a slot: NULL at first, freed by record_free when it
 * ends. NULL if there is no memory. */
struct record **stream_record(devbay_stream *stream, uint32_t slot);

/* Where its launches report that their data is at fault; it is read behind the next signal. */
devbay_status stream_report(devbay_stream *stream, cl_mem *out);

/* Notes that an enqueued call failed at once, for stream_error, and gives the status back. */
devbay_status stream_refuse(devbay_stream *stream, cl_int code, const char *what);

/* Frees what a stream kept (step.c). */
void record_free(const devbay_device *device, struct record *record);

/* A program of OpenCL C for a device, with options for its compiler; made once, then found (program.c).
 * It lives as long as the device. */
devbay_status program_get(devbay_device *device, const char *source, const char *options,
        cl_program *out, devbay_error_detail *error);

/* Frees a device's programs. */
void programs_free(devbay_device *device);

#endif
