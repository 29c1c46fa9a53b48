/* node.h - what a kernel is prepared for: operands and attributes, read with care.
 *
 * prepare checks everything, so that a launch checks nothing (B21). What a kernel does not do is
 * UNSUPPORTED, and the host asks another one; what breaks the op's specification is INVALID.
 */
#ifndef NODE_H
#define NODE_H

#include "plugin.h"

#include "devbay_helpers.h"

#define OPERANDS_MAX 32
#define RANK_MAX 8

struct node {
    const devbay_prepare_desc *desc;
    devbay_device *device;
    devbay_error_detail *error;
    uint32_t n_inputs;
    uint32_t n_outputs;
    /* NULL where an operand is absent. */
    const devbay_tensor *inputs[OPERANDS_MAX];
    const devbay_tensor *outputs[OPERANDS_MAX];
};

/* Reads operands: dense ones of at most RANK_MAX dimensions whose elements 31 bits count. */
devbay_status node_read(
        const devbay_prepare_desc *desc, devbay_error_detail *error, struct node *node);

/* An input, or NULL. */
static inline const devbay_tensor *input_of(const struct node *node, uint32_t i) {
    return i < node->n_inputs ? node->inputs[i] : NULL;
}

/* The number of elements. */
uint32_t n_elements(const devbay_tensor *tensor);

/* The product of extents from one axis to another. */
uint32_t product(const devbay_tensor *tensor, uint32_t begin, uint32_t end);

/* An extent of a tensor. */
static inline uint32_t extent(const devbay_tensor *tensor, uint32_t axis) {
    return (uint32_t)tensor->shape[axis];
}

/* Bytes of an element. */
static inline uint32_t element_bytes(const devbay_tensor *tensor) {
    return tensor->dtype.bits / 8u;
}

/* INVALID if output `i` is not of this shape. */
devbay_status expect_output(
        const struct node *node, uint32_t i, const int64_t *shape, uint32_t rank);

/* Attributes by name, with the value if there is none. */
int64_t attr_int(const struct node *node, const char *name, int64_t absent);
double attr_float(const struct node *node, const char *name, double absent);
/* Whether a text attribute, or its default, is a word. */
int attr_is(const struct node *node, const char *name, const char *absent, const char *word);
/* A list of integers or floats; empty if there is none. */
devbay_list attr_list(const struct node *node, const char *name);
/* Element `i` of a list of integers, or a value if the list is empty. */
int64_t list_int(const devbay_list *list, uint64_t i, int64_t absent);

/* An axis counted from both ends. */
devbay_status axis_of(const struct node *node, int64_t given, uint32_t rank, uint32_t *out);

/* The integers of an input whose value is known (i32 or i64); UNSUPPORTED if it is not. */
devbay_status constant_ints(
        const struct node *node, uint32_t i, int64_t *out, uint32_t max, uint32_t *n);

#endif
