/* step.c - prepared kernels and their launches.
 *
 * A cl_kernel keeps its arguments, so that two threads may not use one at once. What is prepared is
 * shared by all streams, so each stream makes its own cl_kernels at its first launch, and sets the
 * arguments that never change then.
 */
#include "step.h"

#include "kernels.h"

#include <stdlib.h>
#include <string.h>

/* What a stream keeps for a plan. */
struct record {
    /* The plan's number: another plan may have its slot later. */
    uint64_t number;
    uint32_t n_kernels;
    cl_kernel kernels[];
};

static devbay_status add_step(struct plan *plan, const char *source, const char *options,
        const char *kernel, size_t global, size_t local, struct step **out) {
    const struct node *node = plan->node;
    if (plan->n_steps == plan->capacity) {
        uint32_t capacity = plan->capacity == 0 ? 1 : 2 * plan->capacity;
        struct step *steps = realloc(plan->steps, capacity * sizeof(*steps));
        if (steps == NULL || plan->n_steps == STEPS_MAX) {
            plan->steps = steps != NULL ? steps : plan->steps;
            return fail(node->error, DEVBAY_STATUS_OUT_OF_MEMORY, "no memory for a launch");
        }
        plan->steps = steps;
        plan->capacity = capacity;
    }
    struct step *step = &plan->steps[plan->n_steps];
    memset(step, 0, sizeof(*step));
    TRY(program_get(node->device, source, options, &step->program, node->error));
    step->kernel = kernel;
    step->global = global;
    step->local = local;
    plan->n_steps++;
    *out = step;
    return DEVBAY_STATUS_OK;
}

devbay_status step_begin(struct plan *plan, const char *source, const char *options,
        const char *kernel, uint32_t n, struct step **out) {
    size_t global = ((size_t)n + GROUP - 1) / GROUP * GROUP;
    return add_step(plan, source, options, kernel, global, GROUP, out);
}

devbay_status step_begin_groups(struct plan *plan, const char *source, const char *options,
        const char *kernel, uint32_t n, uint32_t local, struct step **out) {
    return add_step(plan, source, options, kernel, (size_t)n * local, local, out);
}

static struct arg *add_arg(struct step *step, enum arg_kind kind) {
    struct arg *arg = &step->args[step->n_args++];
    arg->kind = kind;
    return arg;
}

void arg_input(struct step *step, const struct plan *plan, uint32_t i) {
    struct arg *arg = add_arg(step, ARG_REF);
    const devbay_tensor *tensor = input_of(plan->node, i);
    arg->ref = i;
    arg->element_bytes = tensor != NULL ? element_bytes(tensor) : 1;
}

void arg_output(struct step *step, const struct plan *plan, uint32_t i) {
    struct arg *arg = add_arg(step, ARG_REF);
    arg->ref = plan->node->n_inputs + i;
    arg->element_bytes = element_bytes(plan->node->outputs[i]);
}

void arg_report(struct step *step, struct plan *plan) {
    add_arg(step, ARG_REPORT);
    plan->has_checks = 1;
}

void arg_struct(struct step *step, const void *value, uint32_t n_bytes) {
    struct arg *arg = add_arg(step, ARG_VALUE);
    arg->at = step->n_bytes;
    arg->n_bytes = n_bytes;
    memcpy(step->values + arg->at, value, n_bytes);
    step->n_bytes += n_bytes;
}

void arg_u32(struct step *step, uint32_t value) {
    arg_struct(step, &value, sizeof(value));
}

void arg_f32(struct step *step, float value) {
    arg_struct(step, &value, sizeof(value));
}

void arg_walk(struct step *step, const struct walk *walk) {
    arg_struct(step, walk, sizeof(*walk));
}

void record_free(const devbay_device *device, struct record *record) {
    if (record == NULL) {
        return;
    }
    for (uint32_t i = 0; i < record->n_kernels; i++) {
        driver_of(device)->clReleaseKernel(record->kernels[i]);
    }
    free(record);
}

/* Makes a stream's own kernels of a plan, with the arguments that never change. */
static cl_int record_make(
        const devbay_device *device, const struct plan *plan, struct record **out) {
    const struct driver *driver = driver_of(device);
    struct record *record =
            calloc(1, sizeof(*record) + plan->n_steps * sizeof(record->kernels[0]));
    if (record == NULL) {
        return CL_OUT_OF_HOST_MEMORY;
    }
    record->number = plan->number;
    cl_int code = CL_SUCCESS;
    for (uint32_t i = 0; i < plan->n_steps && code == CL_SUCCESS; i++) {
        const struct step *step = &plan->steps[i];
        cl_kernel kernel = driver->clCreateKernel(step->program, step->kernel, &code);
        if (code != CL_SUCCESS) {
            break;
        }
        record->kernels[record->n_kernels++] = kernel;
        cl_uint place = 0;
        for (uint32_t k = 0; k < step->n_args && code == CL_SUCCESS; k++) {
            const struct arg *arg = &step->args[k];
            /* An operand is two parameters: its buffer, and where it begins there. */
            if (arg->kind == ARG_VALUE) {
                code = driver->clSetKernelArg(
                        kernel, place, arg->n_bytes, step->values + arg->at);
            }
            place += arg->kind == ARG_REF ? 2 : 1;
        }
    }
    if (code != CL_SUCCESS) {
        record_free(device, record);
        return code;
    }
    *out = record;
    return CL_SUCCESS;
}

static devbay_status launch(const void *state, devbay_stream *stream, const devbay_buffer_ref *refs,
        const int64_t *dims) {
    (void)dims;
    const struct plan *plan = state;
    devbay_device *device = stream_device(stream);
    const struct driver *driver = driver_of(device);
    devbay_status status;
    cl_command_queue queue = stream_queue(stream, &status);
    if (queue == NULL) {
        return status;
    }
    struct record **place = stream_record(stream, plan->slot);
    if (place == NULL) {
        return stream_refuse(stream, CL_OUT_OF_HOST_MEMORY, "a launch");
    }
    if (*place == NULL || (*place)->number != plan->number) {
        record_free(device, *place);
        *place = NULL;
        cl_int code = record_make(device, plan, place);
        if (code != CL_SUCCESS) {
            return stream_refuse(stream, code, "a kernel");
        }
    }
    cl_mem report = NULL;
    if (plan->has_checks) {
        TRY(stream_report(stream, &report));
    }
    for (uint32_t i = 0; i < plan->n_steps; i++) {
        const struct step *step = &plan->steps[i];
        cl_kernel kernel = (*place)->kernels[i];
        cl_int code = CL_SUCCESS;
        cl_uint at = 0;
        for (uint32_t k = 0; k < step->n_args && code == CL_SUCCESS; k++) {
            const struct arg *arg = &step->args[k];
            if (arg->kind == ARG_VALUE) {
                at++;
                continue;
            }
            if (arg->kind == ARG_REPORT) {
                code = driver->clSetKernelArg(kernel, at++, sizeof(report), &report);
                continue;
            }
            const devbay_buffer_ref *ref = &refs[arg->ref];
            cl_mem memory = ref->buffer != NULL ? ref->buffer->memory : NULL;
            cl_uint offset = (cl_uint)(ref->offset / arg->element_bytes);
            code = driver->clSetKernelArg(kernel, at++, sizeof(memory), &memory);
            if (code == CL_SUCCESS) {
                code = driver->clSetKernelArg(kernel, at++, sizeof(offset), &offset);
            }
        }
        if (code == CL_SUCCESS) {
            code = driver->clEnqueueNDRangeKernel(
                    queue, kernel, 1, NULL, &step->global, &step->local, 0, NULL, NULL);
        }
        if (code != CL_SUCCESS) {
            return stream_refuse(stream, code, step->kernel);
        }
    }
    return DEVBAY_STATUS_OK;
}

/* A slot that nobody has; UINT32_MAX if there is no memory. */
static uint32_t take_slot(devbay_instance *instance, uint64_t *number) {
    pthread_mutex_lock(&instance->slots_lock);
    uint32_t slot = UINT32_MAX;
    if (instance->n_free_slots > 0) {
        slot = instance->free_slots[--instance->n_free_slots];
    } else {
        /* Room for the slot to come back, so that giving it back needs no memory. */
        uint32_t *list = realloc(instance->free_slots, (instance->n_slots + 1) * sizeof(*list));
        if (list != NULL) {
            instance->free_slots = list;
            slot = instance->n_slots++;
        }
    }
    *number = ++instance->n_prepared;
    pthread_mutex_unlock(&instance->slots_lock);
    return slot;
}

static void give_slot(devbay_instance *instance, uint32_t slot) {
    pthread_mutex_lock(&instance->slots_lock);
    instance->free_slots[instance->n_free_slots++] = slot;
    pthread_mutex_unlock(&instance->slots_lock);
}

/* The kernel that is meant, and the node that it is for. */
static devbay_status read(const devbay_prepare_desc *desc, devbay_error_detail *error,
        const struct kernel **kernel, struct node *node) {
    if (desc->kernel_idx >= n_kernels || desc->device == NULL) {
        return fail(error, DEVBAY_STATUS_INVALID, "kernel %u of %u, or no device",
                (unsigned)desc->kernel_idx, (unsigned)n_kernels);
    }
    *kernel = &kernels[desc->kernel_idx];
    TRY(node_read(desc, error, node));
    return kernel_check(*kernel, node);
}

devbay_status prepare(devbay_instance *instance, const devbay_prepare_desc *desc,
        devbay_prepared *out, devbay_error_detail *error) {
    struct node node;
    const struct kernel *kernel;
    TRY(read(desc, error, &kernel, &node));
    struct plan *plan = calloc(1, sizeof(*plan));
    if (plan == NULL) {
        return fail(error, DEVBAY_STATUS_OUT_OF_MEMORY, "no memory for a prepared kernel");
    }
    plan->node = &node;
    devbay_status status = kernel->prepare(plan, &node);
    if (status == DEVBAY_STATUS_OK) {
        plan->slot = take_slot(instance, &plan->number);
        if (plan->slot == UINT32_MAX) {
            status = fail(error, DEVBAY_STATUS_OUT_OF_MEMORY, "no memory for a prepared kernel");
        }
    }
    if (status != DEVBAY_STATUS_OK) {
        free(plan->steps);
        free(plan);
        return status;
    }
    /* The node is lent for the call only. */
    plan->node = NULL;
    out->launch = launch;
    out->state = plan;
    /* A host that speaks an older minor has no such field, and passes constants as they are: kernels
     * ask for a packing where wants_packing says so alone. */
    if (plan->packing.tile != 0) {
        const struct packing *packing = &plan->packing;
        plan->pack = (devbay_constant_pack){
                .struct_size = sizeof(devbay_constant_pack),
                .input_idx = packing->input_idx,
                /* The bytes follow from the tile and the columns of a row. */
                .layout_id = UINT64_C(1) << 40 | (uint64_t)packing->columns << 8 | packing->tile,
                .size_bytes = (uint64_t)packing->rows * packing->columns * sizeof(float),
                .align = 64,
        };
        out->packs = (devbay_list){&plan->pack, 1, sizeof(plan->pack)};
    }
    return DEVBAY_STATUS_OK;
}

int wants_packing(const struct node *node, uint32_t i) {
    const devbay_tensor *tensor = input_of(node, i);
    return tensor != NULL && DEVBAY_HAS(devbay_tensor, tensor, constant_bytes) &&
           (tensor->flags & DEVBAY_TENSOR_CONSTANT) != 0;
}

devbay_status pack(devbay_instance *instance, const devbay_prepared *prepared, uint32_t input_idx,
        const devbay_tensor *src, void *dst, devbay_error_detail *error) {
    (void)instance;
    const struct plan *plan = prepared->state;
    const struct packing *packing = &plan->packing;
    uint64_t n = (uint64_t)packing->rows * packing->columns;
    if (packing->tile == 0 || input_idx != packing->input_idx ||
            !DEVBAY_HAS(devbay_tensor, src, constant_bytes) || src->constant == NULL ||
            src->constant_bytes != n * sizeof(float)) {
        return fail(error, DEVBAY_STATUS_INVALID, "input %u was not asked for, or is another one",
                (unsigned)input_idx);
    }
    const char *from = src->constant;
    float *to = dst;
    for (uint32_t row = 0; row < packing->rows; row++) {
        for (uint32_t column = 0; column < packing->columns; column++) {
            uint64_t group = row / packing->tile;
            uint64_t at = (group * packing->columns + column) * packing->tile + row % packing->tile;
            memcpy(&to[at], from + ((uint64_t)row * packing->columns + column) * sizeof(float),
                    sizeof(float));
        }
    }
    return DEVBAY_STATUS_OK;
}

void unprepare(devbay_instance *instance, devbay_prepared *prepared) {
    struct plan *plan = prepared->state;
    give_slot(instance, plan->slot);
    free(plan->steps);
    free(plan);
}

devbay_status kernel_cost(devbay_instance *instance, const devbay_prepare_desc *desc,
        devbay_kernel_cost *out, devbay_error_detail *error) {
    (void)instance;
    struct node node;
    const struct kernel *kernel;
    TRY(read(desc, error, &kernel, &node));
    out->flops = kernel->flops(&node);
    out->bytes_read = 0;
    out->bytes_written = 0;
    for (uint32_t i = 0; i < node.n_inputs; i++) {
        const devbay_tensor *tensor = node.inputs[i];
        out->bytes_read += tensor != NULL ? (uint64_t)n_elements(tensor) * element_bytes(tensor) : 0;
    }
    for (uint32_t i = 0; i < node.n_outputs; i++) {
        const devbay_tensor *tensor = node.outputs[i];
        out->bytes_written +=
                tensor != NULL ? (uint64_t)n_elements(tensor) * element_bytes(tensor) : 0;
    }
    return DEVBAY_STATUS_OK;
}
