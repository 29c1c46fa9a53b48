/* op_move.c - kernels that move elements and calculate nothing: of any type, by its size. */
#include "kernels.h"

#include <stdio.h>
#include <string.h>

static const char SOURCE[] =
        "#ifndef I\n"
        "#define I long\n"
        "#endif\n"
        "__kernel void move(IN(T, x), OUT(T, y), const uint n, const Walk from, const uint from_at,\n"
        "                   const Walk to, const uint to_at) {\n"
        "  const uint i = get_global_id(0);\n"
        "  if (i >= n) return;\n"
        "  y[y_at + to_at + place(i, &to)] = x[x_at + from_at + place(i, &from)];\n"
        "}\n"
        /* `inner` has the strides of x, `edges` its extents and what stands before them. */
        "__kernel void pad(IN(T, x), IN(T, value), const uint has_value, OUT(T, y), const uint n,\n"
        "                  const Walk inner, const Walk edges) {\n"
        "  const uint i = get_global_id(0);\n"
        "  if (i >= n) return;\n"
        "  uint rest = i, at = 0;\n"
        "  bool is_inside = true;\n"
        "  for (uint d = inner.rank; d > 0; d--) {\n"
        "    const int k = (int)(rest % inner.extents[d - 1]) - (int)edges.strides[d - 1];\n"
        "    rest /= inner.extents[d - 1];\n"
        "    is_inside = is_inside && k >= 0 && k < (int)edges.extents[d - 1];\n"
        "    at += (uint)k * inner.strides[d - 1];\n"
        "  }\n"
        "  y[y_at + i] = is_inside ? x[x_at + at] : has_value ? value[value_at] : (T)0;\n"
        "}\n"
        /* An index that is out of range fails the stream (the step `check` is in front), and reads the
         * nearest element there is. */
        "__kernel void gather(IN(T, x), IN(I, indices), OUT(T, y), const uint n, const uint inner,\n"
        "                     const uint n_indices, const uint extent) {\n"
        "  const uint i = get_global_id(0);\n"
        "  if (i >= n) return;\n"
        "  long k = indices[indices_at + i / inner % n_indices];\n"
        "  k = clamp(k < 0 ? k + (long)extent : k, 0L, (long)extent - 1);\n"
        "  const uint outer = i / (inner * n_indices);\n"
        "  y[y_at + i] = x[x_at + (outer * extent + (uint)k) * inner + i % inner];\n"
        "}\n"
        /* The first that finds something writes the report: launches of a stream come one behind the
         * other, so that it is of the first op whose data is at fault. */
        "__kernel void check(IN(I, indices), __global volatile uint *report, const uint n,\n"
        "                    const uint extent) {\n"
        "  const uint i = get_global_id(0);\n"
        "  if (i >= n) return;\n"
        "  const long k = indices[indices_at + i];\n"
        "  if (k >= -(long)extent && k < (long)extent) return;\n"
        "  if (atomic_cmpxchg(report, 0u, 1u) != 0u) return;\n"
        "  report[1] = (uint)k;\n"
        "  report[2] = (uint)((ulong)k >> 32);\n"
        "  report[3] = extent;\n"
        "}\n";

/* The type of OpenCL C that is moved for an element. */
static const char *unit(const devbay_tensor *tensor) {
    switch (element_bytes(tensor)) {
    case 1:
        return "-DT=uchar";
    case 2:
        return "-DT=ushort";
    case 4:
        return "-DT=uint";
    default:
        return "-DT=ulong";
    }
}

/* The strides of a dense tensor. */
static void dense_strides(const devbay_tensor *tensor, uint32_t *strides) {
    uint32_t stride = 1;
    for (uint32_t axis = tensor->rank; axis > 0; axis--) {
        strides[axis - 1] = stride;
        stride *= extent(tensor, axis - 1);
    }
}

/* A walk over all elements of a dense tensor. */
static struct walk dense_walk(const devbay_tensor *tensor) {
    return (struct walk){.rank = 1, .extents = {n_elements(tensor)}, .strides = {1}};
}

/* A walk with the extents of one dense tensor, as a part of another of its rank. */
static struct walk part_walk(const devbay_tensor *part, const devbay_tensor *whole) {
    struct walk walk = {.rank = part->rank};
    for (uint32_t axis = 0; axis < part->rank; axis++) {
        walk.extents[axis] = extent(part, axis);
    }
    dense_strides(whole, walk.strides);
    return walk;
}

/* Adds a move between parts of an input and of an output. */
static devbay_status add_move(struct plan *plan, uint32_t input, const struct walk *from,
        uint32_t from_at, uint32_t output, const struct walk *to, uint32_t to_at, uint32_t n) {
    const struct node *node = plan->node;
    struct step *step;
    if (n == 0) {
        return DEVBAY_STATUS_OK;
    }
    TRY(step_begin(plan, SOURCE, unit(node->inputs[input]), "move", n, &step));
    arg_input(step, plan, input);
    arg_output(step, plan, output);
    arg_u32(step, n);
    arg_walk(step, from);
    arg_u32(step, from_at);
    arg_walk(step, to);
    arg_u32(step, to_at);
    return DEVBAY_STATUS_OK;
}

devbay_status prepare_transpose(struct plan *plan, const struct node *node) {
    const devbay_tensor *x = node->inputs[0], *y = node->outputs[0];
    devbay_list order = attr_list(node, "perm");
    if (order.len != 0 && order.len != x->rank) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "perm of another length than the rank");
    }
    int64_t expected[RANK_MAX];
    uint32_t strides[RANK_MAX], seen = 0;
    struct walk from = {.rank = x->rank};
    dense_strides(x, strides);
    for (uint32_t axis = 0; axis < x->rank; axis++) {
        int64_t of = list_int(&order, axis, (int64_t)x->rank - 1 - (int64_t)axis);
        if (of < 0 || of >= (int64_t)x->rank || (seen & (1u << of)) != 0) {
            return fail(node->error, DEVBAY_STATUS_INVALID, "perm is no order of the axes");
        }
        seen |= 1u << of;
        expected[axis] = x->shape[of];
        from.extents[axis] = extent(x, (uint32_t)of);
        from.strides[axis] = strides[of];
    }
    TRY(expect_output(node, 0, expected, x->rank));
    struct walk to = dense_walk(y);
    return add_move(plan, 0, &from, 0, 0, &to, 0, n_elements(y));
}

static int64_t clamped(int64_t value, int64_t low, int64_t high) {
    return value < low ? low : value > high ? high : value;
}

devbay_status prepare_slice(struct plan *plan, const struct node *node) {
    const devbay_tensor *x = node->inputs[0], *y = node->outputs[0];
    int64_t starts[RANK_MAX], ends[RANK_MAX], axes[RANK_MAX], steps[RANK_MAX], shape[RANK_MAX];
    uint32_t n, n_ends, n_axes, n_steps, strides[RANK_MAX];
    TRY(constant_ints(node, 1, starts, RANK_MAX, &n));
    TRY(constant_ints(node, 2, ends, RANK_MAX, &n_ends));
    n_axes = n_steps = n;
    for (uint32_t i = 0; i < n; i++) {
        axes[i] = i;
        steps[i] = 1;
    }
    if (input_of(node, 3) != NULL) {
        TRY(constant_ints(node, 3, axes, RANK_MAX, &n_axes));
    }
    if (input_of(node, 4) != NULL) {
        TRY(constant_ints(node, 4, steps, RANK_MAX, &n_steps));
    }
    if (n_ends != n || n_axes != n || n_steps != n) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "starts, ends, axes and steps in number");
    }
    struct walk from = {.rank = x->rank};
    dense_strides(x, strides);
    memcpy(from.strides, strides, sizeof(strides));
    for (uint32_t axis = 0; axis < x->rank; axis++) {
        shape[axis] = x->shape[axis];
    }
    uint32_t from_at = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t axis;
        TRY(axis_of(node, axes[i], x->rank, &axis));
        if (steps[i] == 0) {
            return fail(node->error, DEVBAY_STATUS_INVALID, "a step of 0");
        }
        /* A step beyond every extent leads out of the axis, however long it is. */
        int64_t size = x->shape[axis], step = clamped(steps[i], -INT32_MAX, INT32_MAX);
        int64_t start = starts[i] < 0 ? starts[i] + size : starts[i];
        int64_t end = ends[i] < 0 && ends[i] >= -INT64_MAX + size ? ends[i] + size : ends[i];
        start = step > 0 ? clamped(start, 0, size) : clamped(start, 0, size - 1);
        end = step > 0 ? clamped(end, 0, size) : clamped(end, -1, size - 1);
        int64_t count = step > 0 ? (end - start + step - 1) / step : (start - end - step - 1) / -step;
        shape[axis] = count > 0 && size > 0 ? count : 0;
        from_at += (uint32_t)start * strides[axis];
        from.strides[axis] = (uint32_t)((int64_t)strides[axis] * step);
    }
    TRY(expect_output(node, 0, shape, x->rank));
    for (uint32_t axis = 0; axis < x->rank; axis++) {
        from.extents[axis] = (uint32_t)shape[axis];
    }
    struct walk to = dense_walk(y);
    return add_move(plan, 0, &from, from_at, 0, &to, 0, n_elements(y));
}

devbay_status prepare_expand(struct plan *plan, const struct node *node) {
    const devbay_tensor *y = node->outputs[0];
    struct walk from, to = dense_walk(y);
    if (!broadcast_walk(node->inputs[0], y, &from)) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "the input cannot be broadcast");
    }
    return add_move(plan, 0, &from, 0, 0, &to, 0, n_elements(y));
}

/* Whether two tensors differ in one axis at most. */
static int same_but(const devbay_tensor *a, const devbay_tensor *b, uint32_t axis) {
    int is_same = a->rank == b->rank;
    for (uint32_t i = 0; i < a->rank && is_same; i++) {
        is_same = i == axis || a->shape[i] == b->shape[i];
    }
    return is_same;
}

devbay_status prepare_concat(struct plan *plan, const struct node *node) {
    const devbay_tensor *y = node->outputs[0];
    uint32_t axis, strides[RANK_MAX];
    TRY(axis_of(node, attr_int(node, "axis", 0), y->rank, &axis));
    dense_strides(y, strides);
    uint32_t begin = 0;
    for (uint32_t i = 0; i < node->n_inputs; i++) {
        const devbay_tensor *x = node->inputs[i];
        if (x == NULL || !same_but(x, y, axis) || extent(x, axis) > extent(y, axis) - begin) {
            return fail(node->error, DEVBAY_STATUS_INVALID, "input %u does not fit", (unsigned)i);
        }
        struct walk from = dense_walk(x), to = part_walk(x, y);
        TRY(add_move(plan, i, &from, 0, 0, &to, begin * strides[axis], n_elements(x)));
        begin += extent(x, axis);
    }
    if (begin != extent(y, axis)) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "the inputs do not fill the output");
    }
    return DEVBAY_STATUS_OK;
}

devbay_status prepare_split(struct plan *plan, const struct node *node) {
    const devbay_tensor *x = node->inputs[0];
    uint32_t axis, strides[RANK_MAX];
    TRY(axis_of(node, attr_int(node, "axis", 0), x->rank, &axis));
    dense_strides(x, strides);
    uint32_t begin = 0;
    for (uint32_t i = 0; i < node->n_outputs; i++) {
        const devbay_tensor *y = node->outputs[i];
        if (y == NULL || !same_but(x, y, axis) || extent(y, axis) > extent(x, axis) - begin) {
            return fail(node->error, DEVBAY_STATUS_INVALID, "output %u does not fit", (unsigned)i);
        }
        struct walk from = part_walk(y, x), to = dense_walk(y);
        TRY(add_move(plan, 0, &from, begin * strides[axis], i, &to, 0, n_elements(y)));
        begin += extent(y, axis);
    }
    if (begin != extent(x, axis)) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "the outputs do not fill the input");
    }
    return DEVBAY_STATUS_OK;
}

devbay_status prepare_pad(struct plan *plan, const struct node *node) {
    const devbay_tensor *x = node->inputs[0], *y = node->outputs[0];
    int64_t pads[2 * RANK_MAX], axes[RANK_MAX], shape[RANK_MAX];
    uint32_t n_pads, n = x->rank;
    TRY(constant_ints(node, 1, pads, 2 * RANK_MAX, &n_pads));
    if (!attr_is(node, "mode", "constant", "constant")) {
        return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "modes but constant");
    }
    for (uint32_t axis = 0; axis < x->rank; axis++) {
        axes[axis] = axis;
        shape[axis] = x->shape[axis];
    }
    if (input_of(node, 3) != NULL) {
        TRY(constant_ints(node, 3, axes, RANK_MAX, &n));
    }
    const devbay_tensor *value = input_of(node, 2);
    if (n_pads != 2 * n || (value != NULL && n_elements(value) != 1)) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "pads for each axis, and one value");
    }
    struct walk inner = {.rank = x->rank}, edges = {.rank = x->rank};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t axis;
        TRY(axis_of(node, axes[i], x->rank, &axis));
        if (pads[i] < -INT32_MAX || pads[i] > INT32_MAX || pads[n + i] < -INT32_MAX ||
                pads[n + i] > INT32_MAX) {
            return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "pads beyond 31 bits");
        }
        edges.strides[axis] = (uint32_t)(int32_t)pads[i];
        shape[axis] += pads[i] + pads[n + i];
    }
    TRY(expect_output(node, 0, shape, x->rank));
    dense_strides(x, inner.strides);
    for (uint32_t axis = 0; axis < x->rank; axis++) {
        inner.extents[axis] = extent(y, axis);
        edges.extents[axis] = extent(x, axis);
    }
    struct step *step;
    TRY(step_begin(plan, SOURCE, unit(x), "pad", n_elements(y), &step));
    arg_input(step, plan, 0);
    arg_input(step, plan, value != NULL ? 2 : 0);
    arg_u32(step, value != NULL);
    arg_output(step, plan, 0);
    arg_u32(step, n_elements(y));
    arg_walk(step, &inner);
    arg_walk(step, &edges);
    return DEVBAY_STATUS_OK;
}

/* Whether indices are constants that name something on an axis. */
static int are_in_range(const devbay_tensor *indices, uint32_t extent) {
    if (!DEVBAY_HAS(devbay_tensor, indices, constant_bytes) ||
            (indices->flags & DEVBAY_TENSOR_CONSTANT) == 0 || indices->constant == NULL) {
        return 0;
    }
    uint32_t size = element_bytes(indices);
    for (uint64_t at = 0; at + size <= indices->constant_bytes; at += size) {
        const char *from = (const char *)indices->constant + at;
        int64_t index;
        int32_t narrow;
        if (size == sizeof(narrow)) {
            memcpy(&narrow, from, sizeof(narrow));
            index = narrow;
        } else {
            memcpy(&index, from, sizeof(index));
        }
        if (index < -(int64_t)extent || index >= (int64_t)extent) {
            return 0;
        }
    }
    return 1;
}

/* Adds the step that fails the stream for an index that names nothing on an axis. */
static devbay_status add_check(struct plan *plan, const struct node *node, uint32_t input,
        uint32_t extent, const char *options) {
    const devbay_tensor *indices = node->inputs[input];
    struct step *step;
    if (!node->device->instance->has_checks || n_elements(indices) == 0 ||
            are_in_range(indices, extent)) {
        return DEVBAY_STATUS_OK;
    }
    TRY(step_begin(plan, SOURCE, options, "check", n_elements(indices), &step));
    arg_input(step, plan, input);
    arg_report(step, plan);
    arg_u32(step, n_elements(indices));
    arg_u32(step, extent);
    return DEVBAY_STATUS_OK;
}

devbay_status prepare_gather(struct plan *plan, const struct node *node) {
    const devbay_tensor *x = node->inputs[0], *indices = node->inputs[1], *y = node->outputs[0];
    uint32_t axis;
    TRY(axis_of(node, attr_int(node, "axis", 0), x->rank, &axis));
    if (x->rank - 1 + indices->rank > RANK_MAX) {
        return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "a rank above %d", RANK_MAX);
    }
    int64_t shape[RANK_MAX];
    uint32_t rank = 0;
    for (uint32_t i = 0; i < axis; i++) {
        shape[rank++] = x->shape[i];
    }
    for (uint32_t i = 0; i < indices->rank; i++) {
        shape[rank++] = indices->shape[i];
    }
    for (uint32_t i = axis + 1; i < x->rank; i++) {
        shape[rank++] = x->shape[i];
    }
    TRY(expect_output(node, 0, shape, rank));
    if (n_elements(x) == 0) {
        return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "nothing to take from");
    }
    char options[64];
    snprintf(options, sizeof(options), "%s%s", unit(x),
            element_bytes(indices) == 4 ? " -DI=int" : "");
    TRY(add_check(plan, node, 1, extent(x, axis), options));
    struct step *step;
    TRY(step_begin(plan, SOURCE, options, "gather", n_elements(y), &step));
    arg_input(step, plan, 0);
    arg_input(step, plan, 1);
    arg_output(step, plan, 0);
    arg_u32(step, n_elements(y));
    arg_u32(step, product(x, axis + 1, x->rank));
    arg_u32(step, n_elements(indices));
    arg_u32(step, extent(x, axis));
    return DEVBAY_STATUS_OK;
}
