/* stream.c - queues as streams, and events as points of a timeline (B12).
 *
 * A stream is an in-order queue of OpenCL's. A signal puts a marker behind what is enqueued, and asks
 * for a call when the marker's event is complete: that call moves the timeline on. So reading the
 * timeline is a load, and nobody polls.
 *
 * One lock per stream guards the points that are under way and who waits for them; launches and
 * copies do not take it.
 */
#include "plugin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Words of a report (arg_report). The first is REPORT_INDEX behind an index that names nothing, and
 * REPORT_WAIT behind a wait for a stream that has a report. */
#define REPORT_WORDS 4
#define REPORT_INDEX 1
#define REPORT_WAIT 2

/* A report is passed on by the device: markers of OpenCL's are done whatever was reported before. */
static const char SOURCE[] =
        "__kernel void inherit(__global const uint *from, __global volatile uint *to) {\n"
        "  if (from[0] != 0u) atomic_cmpxchg(to, 0u, 2u);\n"
        "}\n";

/* A marker that is under way: a point, or a wait for another stream's. */
struct point {
    struct point *next;
    devbay_stream *stream;
    cl_event event;
    /* The point's value; 0 for a wait. */
    uint64_t value;
    /* Under the stream's lock: whether OpenCL's call about it has come, and with which code. */
    int is_done;
    cl_int code;
    /* What launches before it have reported of their data; all 0 if there is none that checks it. */
    cl_uint report[REPORT_WORDS];
};

/* Somebody who is called when a value is reached. */
struct waiter {
    struct waiter *next;
    uint64_t value;
    devbay_done_fn done;
    void *arg;
};

struct devbay_stream {
    devbay_device *device;
    cl_command_queue queue;

    /* The last value that was reached with success, and the failure after which none is. */
    atomic_uint_fast64_t reached;
    atomic_int status;
    /* The last value that was signalled. */
    atomic_uint_fast64_t signalled;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Under the lock: the points that are under way, oldest first; who waits; points for later use; how
     * many calls OpenCL still owes. */
    struct point *oldest;
    struct point *newest;
    struct waiter *waiters;
    struct point *spare;
    uint32_t n_owed;
    /* Under the lock: the status with which points behind a value will fail; OK if none will. */
    devbay_status failure;
    uint64_t fails_after;
    /* Under the lock: the words for stream_error. */
    devbay_status last_status;
    cl_int last_code;
    const char *last_what;
    /* The value and the extent, if it is an index. */
    cl_uint last_report[REPORT_WORDS];

    /* Where launches report of their data, once there was one that may: set under the lock, by its owner,
     * who also has the kernel that passes a report on. */
    cl_mem report;
    cl_kernel inherit;

    /* What it needs of prepared kernels, by their slots; its owner's alone. */
    struct record **records;
    uint32_t n_records;
};

devbay_status stream_create(devbay_device *device, const devbay_stream_desc *desc,
        devbay_stream **out, devbay_error_detail *error) {
    (void)desc;
    devbay_stream *stream = calloc(1, sizeof(*stream));
    if (stream == NULL) {
        return fail(error, DEVBAY_STATUS_OUT_OF_MEMORY, "no memory for a stream");
    }
    cl_int code = CL_SUCCESS;
    stream->queue = driver_of(device)->clCreateCommandQueue(device->context, device->cl, 0, &code);
    if (code != CL_SUCCESS) {
        free(stream);
        return fail_cl(error, code, "a command queue");
    }
    stream->device = device;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&stream->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    *out = stream;
    return DEVBAY_STATUS_OK;
}

void stream_destroy(devbay_stream *stream) {
    const struct driver *driver = driver_of(stream->device);
    driver->clFinish(stream->queue);
    /* Every marker is complete or has failed by now; the calls about them may still be on their way,
     * and are the last to touch the stream. */
    pthread_mutex_lock(&stream->lock);
    while (stream->n_owed > 0) {
        pthread_cond_wait(&stream->changed, &stream->lock);
    }
    pthread_mutex_unlock(&stream->lock);
    for (uint32_t i = 0; i < stream->n_records; i++) {
        record_free(stream->device, stream->records[i]);
    }
    free(stream->records);
    if (stream->report != NULL) {
        driver->clReleaseMemObject(stream->report);
    }
    if (stream->inherit != NULL) {
        driver->clReleaseKernel(stream->inherit);
    }
    while (stream->spare != NULL) {
        struct point *next = stream->spare->next;
        free(stream->spare);
        stream->spare = next;
    }
    driver->clReleaseCommandQueue(stream->queue);
    pthread_cond_destroy(&stream->changed);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
}

devbay_device *stream_device(const devbay_stream *stream) {
    return stream->device;
}

cl_command_queue stream_queue(devbay_stream *stream, devbay_status *status) {
    *status = atomic_load_explicit(&stream->status, memory_order_relaxed);
    return *status == DEVBAY_STATUS_OK ? stream->queue : NULL;
}

struct record **stream_record(devbay_stream *stream, uint32_t slot) {
    if (slot >= stream->n_records) {
        uint32_t n = slot + 1 > 2 * stream->n_records ? slot + 1 : 2 * stream->n_records;
        struct record **records = realloc(stream->records, n * sizeof(struct record *));
        if (records == NULL) {
            return NULL;
        }
        memset(records + stream->n_records, 0, (n - stream->n_records) * sizeof(struct record *));
        stream->records = records;
        stream->n_records = n;
    }
    return &stream->records[slot];
}

devbay_status stream_report(devbay_stream *stream, cl_mem *out) {
    static const cl_uint nothing[REPORT_WORDS];
    const struct driver *driver = driver_of(stream->device);
    if (stream->report == NULL) {
        cl_int code = CL_SUCCESS;
        cl_mem report = driver->clCreateBuffer(
                stream->device->context, CL_MEM_READ_WRITE, sizeof(nothing), NULL, &code);
        if (code != CL_SUCCESS) {
            return stream_refuse(stream, code, "memory for a report");
        }
        /* Once is enough: behind the first report the stream has failed. */
        code = driver->clEnqueueWriteBuffer(
                stream->queue, report, CL_FALSE, 0, sizeof(nothing), nothing, 0, NULL, NULL);
        if (code != CL_SUCCESS) {
            driver->clReleaseMemObject(report);
            return stream_refuse(stream, code, "a report");
        }
        pthread_mutex_lock(&stream->lock);
        stream->report = report;
        pthread_mutex_unlock(&stream->lock);
    }
    *out = stream->report;
    return DEVBAY_STATUS_OK;
}

/* Passes on what another stream has reported when this one has come so far. */
static devbay_status inherit(devbay_stream *stream, cl_mem from) {
    const struct driver *driver = driver_of(stream->device);
    cl_mem to;
    cl_int code = CL_SUCCESS;
    size_t one = 1;
    TRY(stream_report(stream, &to));
    if (stream->inherit == NULL) {
        cl_program program;
        TRY(program_get(stream->device, SOURCE, "", &program, NULL));
        stream->inherit = driver->clCreateKernel(program, "inherit", &code);
    }
    if (code == CL_SUCCESS) {
        code = driver->clSetKernelArg(stream->inherit, 0, sizeof(from), &from);
    }
    if (code == CL_SUCCESS) {
        code = driver->clSetKernelArg(stream->inherit, 1, sizeof(to), &to);
    }
    if (code == CL_SUCCESS) {
        code = driver->clEnqueueNDRangeKernel(
                stream->queue, stream->inherit, 1, NULL, &one, &one, 0, NULL, NULL);
    }
    return code == CL_SUCCESS ? DEVBAY_STATUS_OK : stream_refuse(stream, code, "a report");
}

/* Notes what failed; under the lock. */
static void note(devbay_stream *stream, devbay_status status, cl_int code, const char *what) {
    stream->last_status = status;
    stream->last_code = code;
    stream->last_what = what;
    stream->last_report[0] = 0;
}

devbay_status stream_refuse(devbay_stream *stream, cl_int code, const char *what) {
    devbay_status status = status_of(code);
    pthread_mutex_lock(&stream->lock);
    note(stream, status, code, what);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

/* Whether `size` bytes from an offset are within a reference and its buffer. */
static int in_range(const devbay_buffer_ref *ref, uint64_t size) {
    return ref->buffer != NULL && size <= ref->length && ref->offset <= ref->buffer->size_bytes &&
           ref->length <= ref->buffer->size_bytes - ref->offset;
}

devbay_status stream_copy(devbay_stream *stream, const devbay_copy_desc *desc) {
    const struct driver *driver = driver_of(stream->device);
    uint64_t size = desc->size_bytes;
    devbay_status status;
    cl_command_queue queue = stream_queue(stream, &status);
    if (queue == NULL || size == 0) {
        return status;
    }
    const devbay_buffer_ref *src = &desc->src, *dst = &desc->dst;
    cl_int code;
    switch (desc->kind) {
    case DEVBAY_COPY_HOST_TO_BUFFER:
        if (desc->host_src == NULL || !in_range(dst, size)) {
            break;
        }
        /* The host lends its memory until a later point is reached: nothing has to wait here. */
        code = driver->clEnqueueWriteBuffer(queue, dst->buffer->memory, CL_FALSE, dst->offset, size,
                desc->host_src, 0, NULL, NULL);
        return code == CL_SUCCESS ? DEVBAY_STATUS_OK : stream_refuse(stream, code, "an upload");
    case DEVBAY_COPY_BUFFER_TO_HOST:
        if (desc->host_dst == NULL || !in_range(src, size)) {
            break;
        }
        code = driver->clEnqueueReadBuffer(queue, src->buffer->memory, CL_FALSE, src->offset, size,
                desc->host_dst, 0, NULL, NULL);
        return code == CL_SUCCESS ? DEVBAY_STATUS_OK : stream_refuse(stream, code, "a readback");
    case DEVBAY_COPY_BUFFER_TO_BUFFER:
        if (!in_range(src, size) || !in_range(dst, size) ||
                (src->buffer == dst->buffer && src->offset < dst->offset + size &&
                        dst->offset < src->offset + size)) {
            break;
        }
        code = driver->clEnqueueCopyBuffer(queue, src->buffer->memory, dst->buffer->memory,
                src->offset, dst->offset, size, 0, NULL, NULL);
        return code == CL_SUCCESS ? DEVBAY_STATUS_OK : stream_refuse(stream, code, "a copy");
    default:
        break;
    }
    pthread_mutex_lock(&stream->lock);
    note(stream, DEVBAY_STATUS_INVALID, 0, "a copy of ranges that overlap or are none");
    pthread_mutex_unlock(&stream->lock);
    return DEVBAY_STATUS_INVALID;
}

/* Takes out those who wait for what was reached, or can be no more; under the lock. */
static struct waiter *due_waiters(devbay_stream *stream) {
    struct waiter *due = NULL, **at = &stream->waiters;
    uint64_t reached = atomic_load(&stream->reached);
    int has_failed = atomic_load(&stream->status) != DEVBAY_STATUS_OK;
    while (*at != NULL) {
        struct waiter *waiter = *at;
        if (waiter->value > reached && !has_failed) {
            at = &waiter->next;
            continue;
        }
        *at = waiter->next;
        waiter->next = due;
        due = waiter;
    }
    return due;
}

static void call_waiters(struct waiter *waiters, uint64_t reached, devbay_status status) {
    while (waiters != NULL) {
        struct waiter *next = waiters->next;
        waiters->done(waiters->arg, waiters->value <= reached ? DEVBAY_STATUS_OK : status);
        free(waiters);
        waiters = next;
    }
}

/* Notes a marker that is done, after all before it: its value is reached, or the stream has failed; under the lock. */
static void settle(devbay_stream *stream, const struct point *point) {
    int is_wait = point->value == 0;
    /* A failure before this point stands. */
    if (atomic_load(&stream->status) != DEVBAY_STATUS_OK) {
        return;
    }
    if (point->code < 0) {
        devbay_status status = is_wait ? DEVBAY_STATUS_ABORTED : status_of(point->code);
        note(stream, status, point->code, is_wait ? "a wait for another stream" : "enqueued work");
        atomic_store(&stream->status, status);
    } else if (point->report[0] != 0) {
        int is_own = point->report[0] == REPORT_INDEX;
        devbay_status status = is_own ? DEVBAY_STATUS_INVALID : DEVBAY_STATUS_ABORTED;
        note(stream, status, 0, is_own ? "Gather" : "a wait for a stream that fails");
        if (is_own) {
            memcpy(stream->last_report, point->report, sizeof(point->report));
        }
        atomic_store(&stream->status, status);
    } else if (stream->failure != DEVBAY_STATUS_OK && point->value > stream->fails_after) {
        atomic_store(&stream->status, stream->failure);
    } else if (!is_wait) {
        atomic_store(&stream->reached, point->value);
    }
}

/* OpenCL's call about a marker: on a thread of the driver, or of a caller that asked the driver something. The queue is
 * in order, but these calls need not be, so markers are settled in the order of the queue. */
static void CL_CALLBACK on_complete(cl_event event, cl_int code, void *user) {
    (void)event;
    struct point *point = user;
    devbay_stream *stream = point->stream;
    const struct driver *driver = driver_of(stream->device);
    pthread_mutex_lock(&stream->lock);
    point->is_done = 1;
    point->code = code;
    struct point *settled = NULL;
    while (stream->oldest != NULL && stream->oldest->is_done) {
        struct point *first = stream->oldest;
        stream->oldest = first->next;
        if (stream->oldest == NULL) {
            stream->newest = NULL;
        }
        settle(stream, first);
        first->next = settled;
        settled = first;
    }
    struct waiter *due = due_waiters(stream);
    uint64_t reached = atomic_load(&stream->reached);
    devbay_status status = atomic_load(&stream->status);
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    for (struct point *at = settled; at != NULL; at = at->next) {
        driver->clReleaseEvent(at->event);
    }
    /* No lock is held while the host is called (B16). */
    call_waiters(due, reached, status);
    pthread_mutex_lock(&stream->lock);
    while (settled != NULL) {
        struct point *next = settled->next;
        settled->next = stream->spare;
        stream->spare = settled;
        settled = next;
    }
    stream->n_owed--;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

/* Puts a marker behind what is enqueued, or behind another stream's, and asks for a call about it. */
static devbay_status mark(devbay_stream *stream, uint64_t value, const cl_event *other) {
    const struct driver *driver = driver_of(stream->device);
    pthread_mutex_lock(&stream->lock);
    struct point *point = stream->spare;
    if (point != NULL) {
        stream->spare = point->next;
    }
    pthread_mutex_unlock(&stream->lock);
    point = point != NULL ? point : malloc(sizeof(*point));
    if (point == NULL) {
        return stream_refuse(stream, CL_OUT_OF_HOST_MEMORY, "a point");
    }
    *point = (struct point){.stream = stream, .value = value};
    cl_int code = CL_SUCCESS;
    if (value != 0 && stream->report != NULL) {
        /* The queue is in order: it is there before the marker behind it. */
        code = driver->clEnqueueReadBuffer(stream->queue, stream->report, CL_FALSE, 0,
                sizeof(point->report), point->report, 0, NULL, NULL);
        if (code != CL_SUCCESS) {
            free(point);
            return stream_refuse(stream, code, "a report");
        }
    }
    code = other == NULL
                   ? driver->clEnqueueMarkerWithWaitList(stream->queue, 0, NULL, &point->event)
                   : driver->clEnqueueBarrierWithWaitList(stream->queue, 1, other, &point->event);
    if (code != CL_SUCCESS) {
        if (value != 0 && stream->report != NULL) {
            /* A report may be on its way to the point. */
            driver->clFinish(stream->queue);
        }
        free(point);
        return stream_refuse(stream, code, "a marker");
    }
    /* In the list before the call may come, which may be at once. */
    pthread_mutex_lock(&stream->lock);
    if (stream->newest != NULL) {
        stream->newest->next = point;
    } else {
        stream->oldest = point;
    }
    stream->newest = point;
    stream->n_owed++;
    if (value != 0) {
        atomic_store(&stream->signalled, value);
    }
    pthread_mutex_unlock(&stream->lock);
    cl_event event = point->event;
    code = driver->clSetEventCallback(event, CL_COMPLETE, on_complete, point);
    if (code != CL_SUCCESS) {
        on_complete(event, code, point);
        return status_of(code);
    }
    return DEVBAY_STATUS_OK;
}

static devbay_status flush(devbay_stream *stream) {
    cl_int code = driver_of(stream->device)->clFlush(stream->queue);
    return code == CL_SUCCESS ? DEVBAY_STATUS_OK : stream_refuse(stream, code, "a flush");
}

devbay_status stream_signal(devbay_stream *stream, uint64_t value) {
    devbay_status status;
    if (stream_queue(stream, &status) == NULL) {
        return status;
    }
    if (value <= atomic_load(&stream->signalled)) {
        pthread_mutex_lock(&stream->lock);
        note(stream, DEVBAY_STATUS_INVALID, 0, "a signal of a value that does not rise");
        pthread_mutex_unlock(&stream->lock);
        return DEVBAY_STATUS_INVALID;
    }
    TRY(mark(stream, value, NULL));
    return flush(stream);
}

devbay_status stream_flush(devbay_stream *stream) {
    devbay_status status;
    return stream_queue(stream, &status) == NULL ? status : flush(stream);
}

devbay_status stream_reached(devbay_stream *stream, uint64_t *out_value) {
    /* The status first: what was reached before a failure is then seen with it. */
    devbay_status status = atomic_load_explicit(&stream->status, memory_order_acquire);
    *out_value = atomic_load_explicit(&stream->reached, memory_order_acquire);
    return status;
}

/* Makes the points behind those that were signalled fail, with the words for it. */
static void fail_from_here(devbay_stream *stream, devbay_status status, const char *what) {
    pthread_mutex_lock(&stream->lock);
    if (stream->failure == DEVBAY_STATUS_OK) {
        stream->failure = status;
        stream->fails_after = atomic_load(&stream->signalled);
        note(stream, status, 0, what);
    }
    pthread_mutex_unlock(&stream->lock);
}

devbay_status stream_wait(devbay_stream *stream, devbay_stream *other, uint64_t value) {
    const struct driver *driver = driver_of(stream->device);
    devbay_status status;
    if (stream_queue(stream, &status) == NULL) {
        return status;
    }
    if (value > atomic_load(&other->signalled)) {
        return DEVBAY_STATUS_INVALID;
    }
    cl_event event = NULL;
    cl_mem report = NULL;
    int fails = 0;
    pthread_mutex_lock(&other->lock);
    if (value > atomic_load(&other->reached)) {
        fails = atomic_load(&other->status) != DEVBAY_STATUS_OK ||
                (other->failure != DEVBAY_STATUS_OK && value > other->fails_after);
        struct point *point = other->oldest;
        while (point != NULL && point->value < value) {
            point = point->next;
        }
        if (point != NULL && !fails) {
            event = point->event;
            driver->clRetainEvent(event);
        }
        if (event != NULL && other->report != NULL) {
            /* It lives as long as the other stream, whose end waits for the point alone. */
            report = other->report;
            driver->clRetainMemObject(report);
        }
    }
    pthread_mutex_unlock(&other->lock);
    if (fails) {
        fail_from_here(stream, DEVBAY_STATUS_ABORTED, "a wait for a stream that fails");
    }
    if (event == NULL) {
        return DEVBAY_STATUS_OK;
    }
    status = mark(stream, 0, &event);
    driver->clReleaseEvent(event);
    if (report != NULL) {
        status = status == DEVBAY_STATUS_OK ? inherit(stream, report) : status;
        driver->clReleaseMemObject(report);
    }
    return status;
}

devbay_status stream_fail(devbay_stream *stream, devbay_status status) {
    if (status == DEVBAY_STATUS_OK) {
        return DEVBAY_STATUS_INVALID;
    }
    fail_from_here(stream, status, "a failure that was asked for");
    return DEVBAY_STATUS_OK;
}

devbay_status stream_on_reached(
        devbay_stream *stream, uint64_t value, devbay_done_fn done, void *arg) {
    if (value > atomic_load(&stream->signalled)) {
        return DEVBAY_STATUS_INVALID;
    }
    struct waiter *waiter = malloc(sizeof(*waiter));
    if (waiter == NULL) {
        return DEVBAY_STATUS_OUT_OF_MEMORY;
    }
    *waiter = (struct waiter){.value = value, .done = done, .arg = arg};
    pthread_mutex_lock(&stream->lock);
    waiter->next = stream->waiters;
    stream->waiters = waiter;
    struct waiter *due = due_waiters(stream);
    uint64_t reached = atomic_load(&stream->reached);
    devbay_status status = atomic_load(&stream->status);
    pthread_mutex_unlock(&stream->lock);
    call_waiters(due, reached, status);
    return DEVBAY_STATUS_OK;
}

devbay_status stream_host_wait(devbay_stream *stream, uint64_t value, uint64_t timeout_ns) {
    if (value > atomic_load(&stream->signalled)) {
        return DEVBAY_STATUS_INVALID;
    }
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + timeout_ns % UINT64_C(1000000000);
    uint64_t seconds = timeout_ns / UINT64_C(1000000000) + ns / UINT64_C(1000000000);
    /* A time that is over after the sun is as good as none. */
    seconds = seconds < UINT64_C(4000000000) ? seconds : UINT64_C(4000000000);
    until.tv_sec += (time_t)seconds;
    until.tv_nsec = (long)(ns % UINT64_C(1000000000));
    devbay_status status = DEVBAY_STATUS_OK;
    pthread_mutex_lock(&stream->lock);
    while (status == DEVBAY_STATUS_OK && value > atomic_load(&stream->reached)) {
        status = atomic_load(&stream->status);
        if (status == DEVBAY_STATUS_OK &&
                pthread_cond_timedwait(&stream->changed, &stream->lock, &until) == ETIMEDOUT &&
                value > atomic_load(&stream->reached)) {
            status = DEVBAY_STATUS_TIMEOUT;
        }
    }
    pthread_mutex_unlock(&stream->lock);
    return status;
}

devbay_status stream_error(devbay_stream *stream, devbay_error_detail *error) {
    pthread_mutex_lock(&stream->lock);
    devbay_status status = stream->last_status;
    cl_int code = stream->last_code;
    const char *what = stream->last_what;
    cl_uint report[REPORT_WORDS];
    memcpy(report, stream->last_report, sizeof(report));
    pthread_mutex_unlock(&stream->lock);
    if (status == DEVBAY_STATUS_OK) {
        return status;
    }
    if (report[0] != 0) {
        int64_t index = (int64_t)((uint64_t)report[2] << 32 | report[1]), extent = report[3];
        return fail(error, status, "%s: index %lld, expected %lld up to %lld", what,
                (long long)index, (long long)-extent, (long long)(extent - 1));
    }
    return code == 0 ? fail(error, status, "%s", what)
                     : fail(error, status, "%s: %s (%d)", what, driver_error(code), code);
}
