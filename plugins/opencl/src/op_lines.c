/* op_lines.c - reductions, norms and Softmax: lines of a tensor, each of which a group folds.
 *
 * The work items of a group take turns along a line, and fold what they found in a tree: the order
 * depends on shapes alone, so that results have the same bits every time.
 */
#include "kernels.h"

#include <string.h>

/* A line begins at a place of `kept`, and its elements are at places of `along` from there. */
static const char SOURCE[] =
        "#define GROUP 64\n"
        "float folded(__local float *parts, float v, uint op) {\n"
        "  const uint t = get_local_id(0);\n"
        "  parts[t] = v;\n"
        "  barrier(CLK_LOCAL_MEM_FENCE);\n"
        "  for (uint half_way = GROUP / 2; half_way > 0; half_way /= 2) {\n"
        "    if (t < half_way) {\n"
        "      const float a = parts[t], b = parts[t + half_way];\n"
        "      parts[t] = op == 0 ? a + b : op == 1 ? (a != a || a > b ? a : b)\n"
        "                                           : (a != a || a < b ? a : b);\n"
        "    }\n"
        "    barrier(CLK_LOCAL_MEM_FENCE);\n"
        "  }\n"
        "  const float all = parts[0];\n"
        "  barrier(CLK_LOCAL_MEM_FENCE);\n"
        "  return all;\n"
        "}\n"
        "__kernel void reduce(IN(float, x), OUT(float, y), const uint n, const Walk kept,\n"
        "                     const Walk along, const uint op, const float scale) {\n"
        "  __local float parts[GROUP];\n"
        "  const uint line = get_group_id(0);\n"
        "  __global const float *from = x + x_at + place(line, &kept);\n"
        "  float v = op == 0 ? 0.0f : op == 1 ? -INFINITY : INFINITY;\n"
        "  for (uint k = get_local_id(0); k < n; k += GROUP) {\n"
        "    const float a = from[place(k, &along)];\n"
        "    v = op == 0 ? v + a : op == 1 ? (v != v || v > a ? v : a) : (v != v || v < a ? v : a);\n"
        "  }\n"
        "  v = folded(parts, v, op);\n"
        "  if (get_local_id(0) == 0) y[y_at + line] = v * scale;\n"
        "}\n"
        "__kernel void softmax(IN(float, x), OUT(float, y), const uint n, const Walk kept,\n"
        "                      const Walk along, const uint is_log) {\n"
        "  __local float parts[GROUP];\n"
        "  const uint begin = place(get_group_id(0), &kept), t = get_local_id(0);\n"
        "  __global const float *from = x + x_at + begin;\n"
        "  __global float *to = y + y_at + begin;\n"
        "  float top = -INFINITY, sum = 0.0f;\n"
        "  for (uint k = t; k < n; k += GROUP) {\n"
        "    const float a = from[place(k, &along)];\n"
        "    top = top != top || top > a ? top : a;\n"
        "  }\n"
        "  top = folded(parts, top, 1);\n"
        "  for (uint k = t; k < n; k += GROUP) sum += exp(from[place(k, &along)] - top);\n"
        "  sum = folded(parts, sum, 0);\n"
        "  const float log_sum = log(sum);\n"
        "  for (uint k = t; k < n; k += GROUP) {\n"
        "    const uint at = place(k, &along);\n"
        "    const float a = from[at] - top;\n"
        "    to[at] = is_log ? a - log_sum : exp(a) / sum;\n"
        "  }\n"
        "}\n"
        "__kernel void layer_norm(IN(float, x), IN(float, scale), IN(float, bias), OUT(float, y),\n"
        "                         const uint n, const uint has_bias, const float epsilon) {\n"
        "  __local float parts[GROUP];\n"
        "  const uint begin = get_group_id(0) * n, t = get_local_id(0);\n"
        "  __global const float *from = x + x_at + begin;\n"
        "  float sum = 0.0f, squares = 0.0f;\n"
        "  for (uint k = t; k < n; k += GROUP) sum += from[k];\n"
        "  const float mean = folded(parts, sum, 0) / (float)n;\n"
        "  for (uint k = t; k < n; k += GROUP) squares += (from[k] - mean) * (from[k] - mean);\n"
        "  const float deviation = sqrt(folded(parts, squares, 0) / (float)n + epsilon);\n"
        "  for (uint k = t; k < n; k += GROUP) {\n"
        "    const float a = (from[k] - mean) / deviation * scale[scale_at + k];\n"
        "    y[y_at + begin + k] = has_bias ? a + bias[bias_at + k] : a;\n"
        "  }\n"
        "}\n"
        "__kernel void batch_norm(IN(float, x), IN(float, scale), IN(float, bias), IN(float, mean),\n"
        "                         IN(float, variance), OUT(float, y), const uint n,\n"
        "                         const uint channels, const uint inner, const float epsilon) {\n"
        "  const uint i = get_global_id(0);\n"
        "  if (i >= n) return;\n"
        "  const uint c = i / inner % channels;\n"
        "  y[y_at + i] = (x[x_at + i] - mean[mean_at + c]) / sqrt(variance[variance_at + c] + epsilon)\n"
        "                * scale[scale_at + c] + bias[bias_at + c];\n"
        "}\n";

/* The lines of a dense tensor along some of its axes. */
struct lines {
    struct walk kept, along;
    uint32_t n_lines, n;
};

static struct lines lines_of(const devbay_tensor *x, uint32_t axes) {
    struct lines lines = {.n_lines = 1, .n = 1};
    for (uint32_t axis = 0; axis < x->rank; axis++) {
        int is_along = (axes & (1u << axis)) != 0;
        struct walk *walk = is_along ? &lines.along : &lines.kept;
        walk->extents[walk->rank] = extent(x, axis);
        walk->strides[walk->rank++] = product(x, axis + 1, x->rank);
        *(is_along ? &lines.n : &lines.n_lines) *= extent(x, axis);
    }
    return lines;
}

enum { OP_SUM, OP_MAX, OP_MIN };

/* Adds the fold of lines. */
static devbay_status add_reduce(
        struct plan *plan, const struct lines *lines, uint32_t op, int is_mean) {
    struct step *step;
    TRY(step_begin_groups(plan, SOURCE, "", "reduce", lines->n_lines, GROUP, &step));
    arg_input(step, plan, 0);
    arg_output(step, plan, 0);
    arg_u32(step, lines->n);
    arg_walk(step, &lines->kept);
    arg_walk(step, &lines->along);
    arg_u32(step, op);
    arg_f32(step, is_mean ? 1.0f / (float)lines->n : 1.0f);
    return DEVBAY_STATUS_OK;
}

static devbay_status prepare_reduce(
        struct plan *plan, const struct node *node, uint32_t op, int is_mean) {
    const devbay_tensor *x = node->inputs[0];
    int64_t given[RANK_MAX], shape[RANK_MAX];
    uint32_t n_given = 0, axes = 0, rank = 0;
    if (input_of(node, 1) != NULL) {
        TRY(constant_ints(node, 1, given, RANK_MAX, &n_given));
    }
    for (uint32_t i = 0; i < n_given; i++) {
        uint32_t axis;
        TRY(axis_of(node, given[i], x->rank, &axis));
        axes |= 1u << axis;
    }
    if (n_given == 0 && attr_int(node, "noop_with_empty_axes", 0) == 0) {
        axes = (1u << x->rank) - 1;
    }
    int keeps = attr_int(node, "keepdims", 1) != 0;
    for (uint32_t axis = 0; axis < x->rank; axis++) {
        int is_along = (axes & (1u << axis)) != 0;
        if (!is_along || keeps) {
            shape[rank++] = is_along ? 1 : x->shape[axis];
        }
    }
    TRY(expect_output(node, 0, shape, rank));
    struct lines lines = lines_of(x, axes);
    if (n_elements(x) == 0) {
        return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "a reduction of nothing");
    }
    return add_reduce(plan, &lines, op, is_mean);
}

devbay_status prepare_reduce_sum(struct plan *plan, const struct node *node) {
    return prepare_reduce(plan, node, OP_SUM, 0);
}

devbay_status prepare_reduce_mean(struct plan *plan, const struct node *node) {
    return prepare_reduce(plan, node, OP_SUM, 1);
}

devbay_status prepare_reduce_max(struct plan *plan, const struct node *node) {
    return prepare_reduce(plan, node, OP_MAX, 0);
}

devbay_status prepare_reduce_min(struct plan *plan, const struct node *node) {
    return prepare_reduce(plan, node, OP_MIN, 0);
}

static devbay_status prepare_global_pool(
        struct plan *plan, const struct node *node, uint32_t op, int is_mean) {
    const devbay_tensor *x = node->inputs[0];
    int64_t shape[RANK_MAX];
    if (x->rank < 3) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "an image without spatial axes");
    }
    for (uint32_t axis = 0; axis < x->rank; axis++) {
        shape[axis] = axis < 2 ? x->shape[axis] : 1;
    }
    TRY(expect_output(node, 0, shape, x->rank));
    struct lines lines = lines_of(x, ((1u << x->rank) - 1) & ~3u);
    if (n_elements(x) == 0) {
        return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "an image of nothing");
    }
    return add_reduce(plan, &lines, op, is_mean);
}

devbay_status prepare_global_average_pool(struct plan *plan, const struct node *node) {
    return prepare_global_pool(plan, node, OP_SUM, 1);
}

devbay_status prepare_global_max_pool(struct plan *plan, const struct node *node) {
    return prepare_global_pool(plan, node, OP_MAX, 0);
}

static devbay_status prepare_of_softmax(struct plan *plan, const struct node *node, int is_log) {
    const devbay_tensor *x = node->inputs[0];
    uint32_t axis = 0;
    TRY(expect_output(node, 0, x->shape, x->rank));
    /* A scalar is a line of one element. */
    if (x->rank > 0) {
        TRY(axis_of(node, attr_int(node, "axis", -1), x->rank, &axis));
    }
    struct lines lines = lines_of(x, 1u << axis);
    struct step *step;
    TRY(step_begin_groups(plan, SOURCE, "", "softmax", lines.n_lines, GROUP, &step));
    arg_input(step, plan, 0);
    arg_output(step, plan, 0);
    arg_u32(step, lines.n);
    arg_walk(step, &lines.kept);
    arg_walk(step, &lines.along);
    arg_u32(step, is_log != 0);
    return DEVBAY_STATUS_OK;
}

devbay_status prepare_softmax(struct plan *plan, const struct node *node) {
    return prepare_of_softmax(plan, node, 0);
}

devbay_status prepare_log_softmax(struct plan *plan, const struct node *node) {
    return prepare_of_softmax(plan, node, 1);
}

devbay_status prepare_layer_norm(struct plan *plan, const struct node *node) {
    const devbay_tensor *x = node->inputs[0], *scale = node->inputs[1], *bias = input_of(node, 2);
    uint32_t axis;
    TRY(axis_of(node, attr_int(node, "axis", -1), x->rank, &axis));
    TRY(expect_output(node, 0, x->shape, x->rank));
    uint32_t n = product(x, axis, x->rank);
    if (n == 0 || n_elements(scale) != n || (bias != NULL && n_elements(bias) != n)) {
        return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "a scale or bias that is broadcast");
    }
    struct step *step;
    TRY(step_begin_groups(plan, SOURCE, "", "layer_norm", product(x, 0, axis), GROUP, &step));
    arg_input(step, plan, 0);
    arg_input(step, plan, 1);
    arg_input(step, plan, bias != NULL ? 2 : 1);
    arg_output(step, plan, 0);
    arg_u32(step, n);
    arg_u32(step, bias != NULL);
    arg_f32(step, (float)attr_float(node, "epsilon", 1e-5));
    return DEVBAY_STATUS_OK;
}

devbay_status prepare_batch_norm(struct plan *plan, const struct node *node) {
    const devbay_tensor *x = node->inputs[0];
    if (attr_int(node, "training_mode", 0) != 0) {
        return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "training");
    }
    TRY(expect_output(node, 0, x->shape, x->rank));
    uint32_t channels = x->rank > 1 ? extent(x, 1) : 1;
    for (uint32_t i = 1; i < 5; i++) {
        const devbay_tensor *of = node->inputs[i];
        if (of->rank != 1 || extent(of, 0) != channels) {
            return fail(node->error, DEVBAY_STATUS_INVALID, "input %u of other than the channels",
                    (unsigned)i);
        }
    }
    struct step *step;
    TRY(step_begin(plan, SOURCE, "", "batch_norm", n_elements(x), &step));
    for (uint32_t i = 0; i < 5; i++) {
        arg_input(step, plan, i);
    }
    arg_output(step, plan, 0);
    arg_u32(step, n_elements(x));
    arg_u32(step, channels);
    arg_u32(step, x->rank > 2 ? product(x, 2, x->rank) : 1);
    arg_f32(step, (float)attr_float(node, "epsilon", 1e-5));
    return DEVBAY_STATUS_OK;
}

uint64_t flops_of_input(const struct node *node) {
    return n_elements(node->inputs[0]);
}

uint64_t flops_softmax(const struct node *node) {
    return UINT64_C(25) * n_elements(node->inputs[0]);
}
