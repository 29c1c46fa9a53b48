/* devbay_helpers.h - small functions for plugins in C and C++: texts, errors, options, attributes
 * and operands.
 *
 * Not part of the ABI: a plugin need not use this file, and may change its copy. The functions are
 * static and inline, read lists by their strides (B5), and allocate nothing. They need C99 or C++11,
 * with the standard library. */
#ifndef DEVBAY_HELPERS_H
#define DEVBAY_HELPERS_H

#include "devbay_plugin.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#if defined(__GNUC__)
#define DEVBAY_PRINTF(form, first) __attribute__((format(printf, form, first)))
#else
#define DEVBAY_PRINTF(form, first)
#endif

/* Tests whether a text equals `expected`. */
static inline int devbay_str_is(devbay_str text, const char *expected) {
    size_t len = strlen(expected);
    return text.len == len && (len == 0 || memcmp(text.ptr, expected, len) == 0);
}

/* Writes a message to the host's error detail (B18), and returns `status`. Bytes that are not ASCII
 * become question marks, so that truncation splits no character. */
static inline devbay_status devbay_fail(
        devbay_error_detail *error, devbay_status status, const char *form, ...)
        DEVBAY_PRINTF(3, 4);

static inline devbay_status devbay_fail(
        devbay_error_detail *error, devbay_status status, const char *form, ...) {
    char text[512] = "";
    va_list arguments;
    uint64_t i;
    va_start(arguments, form);
    vsnprintf(text, sizeof(text), form, arguments);
    va_end(arguments);
    if (error != NULL) {
        error->status = status;
        error->text_len = strlen(text);
        for (i = 0; i < error->text_len && i < error->text_capacity; i++) {
            error->text[i] = (text[i] & 0x80) != 0 ? '?' : text[i];
        }
    }
    return status;
}

/* Returns the value of an option of `create`; NULL if it was not given. */
static inline const devbay_str *devbay_find_option(const devbay_list *options, const char *key) {
    uint64_t i;
    for (i = 0; i < options->len; i++) {
        const devbay_key_value *option = (const devbay_key_value *)DEVBAY_AT(options, i);
        if (devbay_str_is(option->key, key)) {
            return &option->value;
        }
    }
    return NULL;
}

/* Tests whether a text equals one of `words`. */
static inline int devbay_str_is_one_of(devbay_str text, const char *const *words, size_t n_words) {
    size_t i;
    for (i = 0; i < n_words; i++) {
        if (devbay_str_is(text, words[i])) {
            return 1;
        }
    }
    return 0;
}

/* Returns the key of the first option that the plugin does not know, for which `create` returns
 * INVALID; NULL if it knows all. Skips the host's own options: a plugin ignores unknown ones. */
static inline const devbay_str *devbay_unknown_option(
        const devbay_list *options, const char *const *known, size_t n_known) {
    uint64_t i;
    for (i = 0; i < options->len; i++) {
        const devbay_key_value *option = (const devbay_key_value *)DEVBAY_AT(options, i);
        if (!DEVBAY_IS_HOSTS(option->key) && !devbay_str_is_one_of(option->key, known, n_known)) {
            return &option->key;
        }
    }
    return NULL;
}

/* Returns an attribute by name; NULL if the node has none. */
static inline const devbay_attr *devbay_find_attr(const devbay_list *attrs, const char *name) {
    uint64_t i;
    for (i = 0; i < attrs->len; i++) {
        const devbay_attr *attr = (const devbay_attr *)DEVBAY_AT(attrs, i);
        if (devbay_str_is(attr->name, name)) {
            return attr;
        }
    }
    return NULL;
}

/* Returns the first attribute that a kernel does not read, for which `prepare` returns UNSUPPORTED;
 * NULL if it reads all. */
static inline const devbay_attr *devbay_unknown_attr(
        const devbay_list *attrs, const char *const *known, size_t n_known) {
    uint64_t i;
    for (i = 0; i < attrs->len; i++) {
        const devbay_attr *attr = (const devbay_attr *)DEVBAY_AT(attrs, i);
        if (!devbay_str_is_one_of(attr->name, known, n_known)) {
            return attr;
        }
    }
    return NULL;
}

/* Writes the value of an attribute, or `absent` if the node has none. Returns 0 if the attribute has
 * another kind, which is INVALID; else 1. */
static inline int devbay_int_attr(
        const devbay_list *attrs, const char *name, int64_t absent, int64_t *out) {
    const devbay_attr *attr = devbay_find_attr(attrs, name);
    *out = attr != NULL ? attr->i : absent;
    return attr == NULL || attr->kind == DEVBAY_ATTR_INT;
}

/* As devbay_int_attr. */
static inline int devbay_float_attr(
        const devbay_list *attrs, const char *name, double absent, double *out) {
    const devbay_attr *attr = devbay_find_attr(attrs, name);
    *out = attr != NULL ? attr->f : absent;
    return attr == NULL || attr->kind == DEVBAY_ATTR_FLOAT;
}

/* As devbay_int_attr. The text is borrowed from the host for the call. */
static inline int devbay_string_attr(
        const devbay_list *attrs, const char *name, const char *absent, devbay_str *out) {
    const devbay_attr *attr = devbay_find_attr(attrs, name);
    if (attr == NULL) {
        out->ptr = absent;
        out->len = strlen(absent);
        return 1;
    }
    *out = attr->s;
    return attr->kind == DEVBAY_ATTR_STRING;
}

/* As devbay_int_attr, for a list of int64_t; empty if the node has none. Read it with DEVBAY_AT. */
static inline int devbay_ints_attr(
        const devbay_list *attrs, const char *name, devbay_list *out) {
    static const devbay_list empty = {NULL, 0, 0};
    const devbay_attr *attr = devbay_find_attr(attrs, name);
    *out = attr != NULL ? attr->list : empty;
    return attr == NULL || attr->kind == DEVBAY_ATTR_INTS;
}

/* Returns an input or output; NULL if it is absent or beyond the list. */
static inline const devbay_tensor *devbay_operand(const devbay_list *operands, uint64_t i) {
    const devbay_tensor *operand;
    if (i >= operands->len) {
        return NULL;
    }
    operand = (const devbay_tensor *)DEVBAY_AT(operands, i);
    return (operand->flags & DEVBAY_TENSOR_ABSENT) != 0 ? NULL : operand;
}

/* Tests whether an operand has this element type, and is dense. */
static inline int devbay_is_dense(const devbay_tensor *operand, uint8_t code, uint8_t bits) {
    return operand->dtype.code == code && operand->dtype.bits == bits && operand->dtype.lanes == 1 &&
            operand->strides == NULL;
}

/* Writes the number of elements. Returns 0 if an extent is unknown, or the number exceeds `most`;
 * else 1. */
static inline int devbay_n_elements(const devbay_tensor *operand, uint64_t most, uint64_t *out) {
    uint64_t n = 1;
    int is_empty = 0;
    uint32_t axis;
    for (axis = 0; axis < operand->rank; axis++) {
        int64_t extent = operand->shape[axis];
        /* The other extents of an empty tensor count too, so that no product of extents wraps. */
        uint64_t factor = extent > 0 ? (uint64_t)extent : 1;
        if (extent < 0 || factor > most / n) {
            return 0;
        }
        is_empty |= extent == 0;
        n *= factor;
    }
    *out = is_empty ? 0 : n;
    return n <= most;
}

/* Tests whether two operands have the same shape. */
static inline int devbay_same_shape(const devbay_tensor *a, const devbay_tensor *b) {
    return a->rank == b->rank &&
            (a->rank == 0 || memcmp(a->shape, b->shape, a->rank * sizeof(a->shape[0])) == 0);
}

#endif
