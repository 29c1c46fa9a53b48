/* node.c - reads operands and attributes. */
#include "node.h"

#include <string.h>

/* One operand; NULL if it is absent. */
static devbay_status read_operand(
        const struct node *node, const devbay_tensor *tensor, const devbay_tensor **out) {
    *out = NULL;
    if ((tensor->flags & DEVBAY_TENSOR_ABSENT) != 0) {
        return DEVBAY_STATUS_OK;
    }
    if (tensor->rank > RANK_MAX) {
        return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "a rank of %u, the most is %d",
                (unsigned)tensor->rank, RANK_MAX);
    }
    if (DEVBAY_HAS(devbay_tensor, tensor, strides) && tensor->strides != NULL) {
        return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "operands with strides");
    }
    if (tensor->dtype.bits % 8 != 0 || tensor->dtype.lanes != 1) {
        return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "elements of %u bits in %u lanes",
                (unsigned)tensor->dtype.bits, (unsigned)tensor->dtype.lanes);
    }
    uint64_t n = 1;
    for (uint32_t axis = 0; axis < tensor->rank; axis++) {
        int64_t found = tensor->shape[axis];
        /* An empty extent counts as 1: products of some of the extents are made without asking again. */
        uint64_t factor = found > 0 ? (uint64_t)found : 1;
        if (found < 0 || factor > INT32_MAX / n) {
            return fail(node->error, DEVBAY_STATUS_UNSUPPORTED,
                    "extents that are not known, or more elements than 31 bits count");
        }
        n *= factor;
    }
    *out = tensor;
    return DEVBAY_STATUS_OK;
}

devbay_status node_read(
        const devbay_prepare_desc *desc, devbay_error_detail *error, struct node *node) {
    memset(node, 0, sizeof(*node));
    node->desc = desc;
    node->device = desc->device;
    node->error = error;
    if (desc->inputs.len > OPERANDS_MAX || desc->outputs.len > OPERANDS_MAX) {
        return fail(error, DEVBAY_STATUS_UNSUPPORTED, "more than %d operands", OPERANDS_MAX);
    }
    for (uint64_t i = 0; i < desc->inputs.len; i++) {
        TRY(read_operand(node, DEVBAY_AT(&desc->inputs, i), &node->inputs[i]));
    }
    for (uint64_t i = 0; i < desc->outputs.len; i++) {
        TRY(read_operand(node, DEVBAY_AT(&desc->outputs, i), &node->outputs[i]));
    }
    for (uint64_t i = 0; i < desc->attrs.len; i++) {
        const devbay_attr *attr = DEVBAY_AT(&desc->attrs, i);
        if (attr->kind < DEVBAY_ATTR_INT || attr->kind > DEVBAY_ATTR_GRAPH) {
            return fail(error, DEVBAY_STATUS_UNSUPPORTED, "attribute %.*s of kind %u",
                    (int)attr->name.len, attr->name.ptr, (unsigned)attr->kind);
        }
    }
    node->n_inputs = (uint32_t)desc->inputs.len;
    node->n_outputs = (uint32_t)desc->outputs.len;
    return DEVBAY_STATUS_OK;
}

uint32_t product(const devbay_tensor *tensor, uint32_t begin, uint32_t end) {
    uint32_t n = 1;
    for (uint32_t axis = begin; axis < end; axis++) {
        n *= extent(tensor, axis);
    }
    return n;
}

uint32_t n_elements(const devbay_tensor *tensor) {
    return product(tensor, 0, tensor->rank);
}

devbay_status expect_output(
        const struct node *node, uint32_t i, const int64_t *shape, uint32_t rank) {
    const devbay_tensor *found = i < node->n_outputs ? node->outputs[i] : NULL;
    devbay_tensor expected = {.rank = rank, .shape = shape};
    if (found == NULL || !devbay_same_shape(found, &expected)) {
        return fail(node->error, DEVBAY_STATUS_INVALID,
                "output %u is absent or has another shape than the inputs give", (unsigned)i);
    }
    return DEVBAY_STATUS_OK;
}

static const devbay_attr *find(const struct node *node, const char *name, uint32_t kind) {
    const devbay_attr *attr = devbay_find_attr(&node->desc->attrs, name);
    return attr != NULL && attr->kind == kind ? attr : NULL;
}

int64_t attr_int(const struct node *node, const char *name, int64_t absent) {
    const devbay_attr *attr = find(node, name, DEVBAY_ATTR_INT);
    return attr != NULL ? attr->i : absent;
}

double attr_float(const struct node *node, const char *name, double absent) {
    const devbay_attr *attr = find(node, name, DEVBAY_ATTR_FLOAT);
    return attr != NULL ? attr->f : absent;
}

int attr_is(const struct node *node, const char *name, const char *absent, const char *word) {
    const devbay_attr *attr = find(node, name, DEVBAY_ATTR_STRING);
    devbay_str found = attr != NULL ? attr->s : (devbay_str){absent, strlen(absent)};
    return devbay_str_is(found, word);
}

devbay_list attr_list(const struct node *node, const char *name) {
    static const uint32_t kinds[] = {DEVBAY_ATTR_INTS, DEVBAY_ATTR_FLOATS, DEVBAY_ATTR_STRINGS};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const devbay_attr *attr = find(node, name, kinds[i]);
        if (attr != NULL) {
            return attr->list;
        }
    }
    return (devbay_list){NULL, 0, 0};
}

int64_t list_int(const devbay_list *list, uint64_t i, int64_t absent) {
    return i < list->len ? *(const int64_t *)DEVBAY_AT(list, i) : absent;
}

devbay_status axis_of(const struct node *node, int64_t given, uint32_t rank, uint32_t *out) {
    int64_t axis = given < 0 ? given + (int64_t)rank : given;
    if (axis < 0 || axis >= (int64_t)rank) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "axis %lld of a rank of %u",
                (long long)given, (unsigned)rank);
    }
    *out = (uint32_t)axis;
    return DEVBAY_STATUS_OK;
}

devbay_status constant_ints(
        const struct node *node, uint32_t i, int64_t *out, uint32_t max, uint32_t *n) {
    const devbay_tensor *tensor = input_of(node, i);
    if (tensor == NULL || !DEVBAY_HAS(devbay_tensor, tensor, constant_bytes) ||
            (tensor->flags & DEVBAY_TENSOR_CONSTANT) == 0 || tensor->rank > 1 ||
            n_elements(tensor) > max || tensor->dtype.code != DEVBAY_DTYPE_INT) {
        return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "input %u has to be known integers",
                (unsigned)i);
    }
    *n = n_elements(tensor);
    for (uint32_t at = 0; at < *n; at++) {
        if (tensor->dtype.bits == 64) {
            memcpy(&out[at], (const char *)tensor->constant + at * 8u, 8);
        } else {
            int32_t value;
            memcpy(&value, (const char *)tensor->constant + at * 4u, 4);
            out[at] = value;
        }
    }
    return DEVBAY_STATUS_OK;
}
