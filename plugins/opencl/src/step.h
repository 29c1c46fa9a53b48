/* step.h - prepared kernels: one or more launches of OpenCL's, with all but their buffers fixed.
 *
 * A kernel's parameters are given in the order in which OpenCL C declares them, after step_begin:
 *
 *     struct step *step;
 *     TRY(step_begin(plan, source, "", "relu", n, &step));
 *     arg_input(step, 0);
 *     arg_output(step, 0);
 *     arg_u32(step, n);
 */
#ifndef STEP_H
#define STEP_H

#include "node.h"

#define STEPS_MAX OPERANDS_MAX
#define ARGS_MAX 24
/* Work items of a group, where a kernel does not choose. */
#define GROUP 64u

/* The extents and strides of a walk over elements, as the prelude's Walk (program.c). */
struct walk {
    uint32_t rank;
    uint32_t extents[RANK_MAX];
    uint32_t strides[RANK_MAX];
};

enum arg_kind { ARG_REF, ARG_VALUE, ARG_REPORT };

struct arg {
    enum arg_kind kind;
    /* ARG_REF: the operand's place among a launch's references, and the bytes of an element. */
    uint32_t ref;
    uint32_t element_bytes;
    /* ARG_VALUE: where its bytes are in the step's values, and how many. */
    uint32_t at;
    uint32_t n_bytes;
};

/* Bytes of a step's parameters that are numbers and structs, at most. */
#define VALUES_MAX 768

struct step {
    cl_program program;
    const char *kernel;
    size_t global;
    size_t local;
    uint32_t n_args;
    uint32_t n_bytes;
    struct arg args[ARGS_MAX];
    char values[VALUES_MAX];
};

/* A constant operand that the kernel wants in another order (B21): the weights of a convolution, [rows,
 * columns] as [rows / tile, columns, tile]. No tile for none. */
struct packing {
    uint32_t input_idx;
    uint32_t rows;
    uint32_t columns;
    uint32_t tile;
};

/* What prepare makes: immutable, as many threads launch it at once. */
struct plan {
    struct node *node;
    /* What a stream keeps for it stands at this slot under this number (stream.c). */
    uint32_t slot;
    uint64_t number;
    uint32_t n_steps;
    uint32_t capacity;
    struct step *steps;
    /* Whether a step reports what it finds at fault in the data. */
    int has_checks;
    struct packing packing;
    /* What the host is told of it. */
    devbay_constant_pack pack;
};

/* Adds a launch of `n` work items of a program's kernel, in groups of GROUP. `kernel` is static text. */
devbay_status step_begin(struct plan *plan, const char *source, const char *options,
        const char *kernel, uint32_t n, struct step **out);

/* The same, with `n` groups of `local` work items. */
devbay_status step_begin_groups(struct plan *plan, const char *source, const char *options,
        const char *kernel, uint32_t n, uint32_t local, struct step **out);

/* Whether an input is a constant that may come packed. */
int wants_packing(const struct node *node, uint32_t i);

/* The words to which a stream's launches report that their data is at fault: 0 until one does, then 1, a
 * value of 64 bits, low half first, and the extent that it is beyond (stream.c). */
void arg_report(struct step *step, struct plan *plan);
/* Parameters: an input declared by IN, an output declared by OUT, numbers, a walk. */
void arg_input(struct step *step, const struct plan *plan, uint32_t i);
void arg_output(struct step *step, const struct plan *plan, uint32_t i);
void arg_u32(struct step *step, uint32_t value);
void arg_f32(struct step *step, float value);
void arg_walk(struct step *step, const struct walk *walk);
/* A struct of 32-bit numbers, which is laid out alike in C and in OpenCL C. */
void arg_struct(struct step *step, const void *value, uint32_t n_bytes);

#endif
