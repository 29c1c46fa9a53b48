/* op_map.c - elementwise ops: kernels are written of their formulas when a node is prepared.
 *
 * The text of a kernel depends on the ops and on which operands are broadcast, and not on numbers or
 * shapes.
 */
#include "kernels.h"

#include "formulas.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct formula {
    const char *op;
    uint32_t n_operands;
    uint32_t flops;
    const char *text;
    const char *attrs[2];
    float absent[2];
};

static const struct formula formulas[] = {
#define X(op, domain, version, n_operands, flops, text, attr0, absent0, attr1, absent1) \
    {#op, n_operands, flops, text, {attr0, attr1}, {absent0, absent1}},
        FORMULAS(X) FUSED_FORMULAS(X)
#undef X
};

/* Numbers of a kernel, at most, and characters of an operand's expression. */
#define NUMBERS_MAX 64u
#define EXPRESSION_MAX 24

static const char FUNCTIONS[] =
        "float at_least(float a, float low) { return a < low ? low : a; }\n"
        "float at_most(float a, float high) { return a > high ? high : a; }\n"
        "float clip(float a, float low, float high) { return at_most(at_least(a, low), high); }\n"
        /* What is no number stays so. */
        "float larger(float a, float b) { return a != a || a > b ? a : b; }\n"
        "float smaller(float a, float b) { return a != a || a < b ? a : b; }\n"
        "float sign_of(float a) { return a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : a; }\n"
        "float sigmoid(float a) {\n"
        "  const float e = exp(-fabs(a));\n"
        "  return (a < 0.0f ? e : 1.0f) / (1.0f + e);\n"
        "}\n"
        /* What a device makes of an infinity may be a unit in the last place off 1, which times an
         * infinity, or a large number, is another result. Beyond these limits both round to 1. */
        "float erf_to_1(float a) { return fabs(a) > 4.0f ? copysign(1.0f, a) : erf(a); }\n"
        "float tanh_to_1(float a) { return fabs(a) > 9.1f ? copysign(1.0f, a) : tanh(a); }\n"
        "float softplus(float a) { return at_least(a, 0.0f) + log1p(exp(-fabs(a))); }\n";

static const struct formula *find_formula(const char *op, size_t len) {
    for (size_t i = 0; i < sizeof(formulas) / sizeof(formulas[0]); i++) {
        if (strlen(formulas[i].op) == len && memcmp(formulas[i].op, op, len) == 0) {
            return &formulas[i];
        }
    }
    return NULL;
}

/* The formula of the kernel that a node is for. */
static const struct formula *formula_of(const struct node *node) {
    devbay_str op = kernels[node->desc->kernel_idx].info.op;
    return find_formula(op.ptr, op.len);
}

/* Text that grows. */
struct text {
    char *ptr;
    size_t len;
    size_t capacity;
    int is_broken;
};

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void append(struct text *text, const char *form, ...) {
    va_list arguments;
    for (int again = 0; again < 2 && !text->is_broken; again++) {
        size_t room = text->capacity - text->len;
        va_start(arguments, form);
        int n = vsnprintf(text->ptr != NULL ? text->ptr + text->len : NULL, room, form, arguments);
        va_end(arguments);
        if (n < 0) {
            text->is_broken = 1;
        } else if ((size_t)n < room) {
            text->len += (size_t)n;
            return;
        } else {
            text->capacity = 2 * text->capacity + (size_t)n + 1;
            char *ptr = realloc(text->ptr, text->capacity);
            text->is_broken = ptr == NULL;
            text->ptr = ptr != NULL ? ptr : text->ptr;
        }
    }
}

/* The numbers of a kernel: parameters, so that nodes of the same ops share a text. */
struct numbers {
    uint32_t n;
    float values[NUMBERS_MAX];
};

/* Writes a number as an expression. */
static void write_number(struct numbers *numbers, float number, char *out, size_t out_len) {
    if (numbers->n < NUMBERS_MAX) {
        snprintf(out, out_len, "c.v[%u]", (unsigned)numbers->n);
        numbers->values[numbers->n] = number;
    }
    /* One more than there is room for says that there were too many. */
    numbers->n += numbers->n <= NUMBERS_MAX;
}

/* An op's result as a variable; its operands are expressions. */
static void append_op(struct text *text, struct numbers *numbers, const struct formula *formula,
        uint32_t i, const char *a, const char *b, const float attrs[2]) {
    append(text, "  float r%u;\n  {\n    const float a = %s;\n", (unsigned)i, a);
    if (formula->n_operands == 2) {
        append(text, "    const float b = %s;\n", b);
    }
    for (int k = 0; k < 2 && formula->attrs[k] != NULL; k++) {
        char number[EXPRESSION_MAX] = "0.0f";
        write_number(numbers, attrs[k], number, sizeof(number));
        append(text, "    const float k%d = %s;\n", k, number);
    }
    append(text, "    r%u = %s;\n  }\n", (unsigned)i, formula->text);
}

int broadcast_walk(const devbay_tensor *from, const devbay_tensor *to, struct walk *walk) {
    memset(walk, 0, sizeof(*walk));
    if (from->rank > to->rank) {
        return 0;
    }
    uint32_t before = to->rank - from->rank, stride = 1;
    walk->rank = to->rank;
    for (uint32_t axis = to->rank; axis > 0; axis--) {
        uint32_t own = axis - 1 < before ? 1 : extent(from, axis - 1 - before);
        walk->extents[axis - 1] = extent(to, axis - 1);
        if (own != 1 && own != extent(to, axis - 1)) {
            return 0;
        }
        walk->strides[axis - 1] = own == 1 ? 0 : stride;
        stride *= own;
    }
    return 1;
}

/* Whether the result has the extents that its inputs have together, and no others. */
static int is_broadcast(const struct node *node) {
    const devbay_tensor *y = node->outputs[0];
    uint32_t rank = 0;
    for (uint32_t i = 0; i < node->n_inputs; i++) {
        rank = node->inputs[i] != NULL && node->inputs[i]->rank > rank ? node->inputs[i]->rank : rank;
    }
    int is_given = rank == y->rank;
    for (uint32_t axis = 0; axis < y->rank && is_given; axis++) {
        int64_t all = 1;
        for (uint32_t i = 0; i < node->n_inputs; i++) {
            const devbay_tensor *x = node->inputs[i];
            if (x != NULL && axis + x->rank >= y->rank) {
                int64_t own = x->shape[axis + x->rank - y->rank];
                all = own != 1 ? own : all;
            }
        }
        is_given = all == y->shape[axis];
    }
    return is_given;
}

/* The kernel around a body that makes `result` of the inputs v0, v1, ... of these types. */
static devbay_status prepare_map(struct plan *plan, const struct node *node,
        const char *const *input_types, const char *output_type, const struct numbers *numbers,
        const char *body, const char *result) {
    const devbay_tensor *y = node->outputs[0];
    struct walk walks[OPERANDS_MAX];
    int is_walked[OPERANDS_MAX];
    if (!is_broadcast(node)) {
        return fail(node->error, DEVBAY_STATUS_INVALID,
                "the output has another shape than the inputs give together");
    }
    if (numbers != NULL && numbers->n > NUMBERS_MAX) {
        return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "more than %u numbers", NUMBERS_MAX);
    }
    struct text text = {0};
    append(&text, "%s", FUNCTIONS);
    if (numbers != NULL && numbers->n > 0) {
        append(&text, "typedef struct { float v[%u]; } Numbers;\n", (unsigned)numbers->n);
    }
    append(&text, "__kernel void map(");
    for (uint32_t i = 0; i < node->n_inputs; i++) {
        const devbay_tensor *x = node->inputs[i];
        if (x == NULL) {
            continue;
        }
        if (!broadcast_walk(x, y, &walks[i])) {
            free(text.ptr);
            return fail(node->error, DEVBAY_STATUS_INVALID,
                    "input %u cannot be broadcast to the output", (unsigned)i);
        }
        is_walked[i] = n_elements(x) != n_elements(y) && n_elements(x) != 1;
        append(&text, "IN(%s, x%u), ", input_types[i], (unsigned)i);
        if (is_walked[i]) {
            append(&text, "const Walk w%u, ", (unsigned)i);
        }
    }
    if (numbers != NULL && numbers->n > 0) {
        append(&text, "const Numbers c, ");
    }
    append(&text, "OUT(%s, y), const uint n) {\n", output_type);
    append(&text, "  const uint i = get_global_id(0);\n  if (i >= n) return;\n");
    for (uint32_t i = 0; i < node->n_inputs; i++) {
        if (node->inputs[i] == NULL) {
            continue;
        }
        append(&text, "  const %s v%u = x%u[x%u_at", input_types[i], (unsigned)i, (unsigned)i,
                (unsigned)i);
        if (is_walked[i]) {
            append(&text, " + place(i, &w%u)", (unsigned)i);
        } else if (n_elements(node->inputs[i]) != 1) {
            append(&text, " + i");
        }
        append(&text, "];\n");
    }
    append(&text, "%s  y[y_at + i] = %s;\n}\n", body, result);
    if (text.is_broken) {
        free(text.ptr);
        return fail(node->error, DEVBAY_STATUS_OUT_OF_MEMORY, "no memory for a kernel's text");
    }
    struct step *step;
    devbay_status status = step_begin(plan, text.ptr, "", "map", n_elements(y), &step);
    free(text.ptr);
    TRY(status);
    for (uint32_t i = 0; i < node->n_inputs; i++) {
        if (node->inputs[i] == NULL) {
            continue;
        }
        arg_input(step, plan, i);
        if (is_walked[i]) {
            arg_walk(step, &walks[i]);
        }
    }
    if (numbers != NULL && numbers->n > 0) {
        arg_struct(step, numbers->values, numbers->n * (uint32_t)sizeof(numbers->values[0]));
    }
    arg_output(step, plan, 0);
    arg_u32(step, n_elements(y));
    return DEVBAY_STATUS_OK;
}

static const char *const FLOATS[] = {"float", "float", "float", "float", "float", "float", "float"};
#define FLOATS_MAX ((uint32_t)(sizeof(FLOATS) / sizeof(FLOATS[0])))

/* One op on f32. */
static devbay_status prepare_one(struct plan *plan, const struct node *node,
        const struct formula *formula, const float attrs[2]) {
    struct text body = {0};
    struct numbers numbers = {0};
    append_op(&body, &numbers, formula, 0, "v0", "v1", attrs);
    if (body.is_broken) {
        free(body.ptr);
        return fail(node->error, DEVBAY_STATUS_OUT_OF_MEMORY, "no memory for a kernel's text");
    }
    devbay_status status = prepare_map(plan, node, FLOATS, "float", &numbers, body.ptr, "r0");
    free(body.ptr);
    return status;
}

devbay_status prepare_formula(struct plan *plan, const struct node *node) {
    const struct formula *formula = formula_of(node);
    float attrs[2] = {0, 0};
    for (int k = 0; k < 2 && formula->attrs[k] != NULL; k++) {
        attrs[k] = (float)attr_float(node, formula->attrs[k], (double)formula->absent[k]);
    }
    if (strcmp(formula->op, "PRelu") == 0 && n_elements(node->inputs[1]) != 1 &&
            n_elements(node->inputs[0]) != n_elements(node->outputs[0])) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "a slope that is broader than its input");
    }
    return prepare_one(plan, node, formula, attrs);
}

devbay_status prepare_clip(struct plan *plan, const struct node *node) {
    /* The upper limit is applied last, so that it holds where the limits cross. */
    static const char *const bodies[] = {"  const float r0 = v0;\n",
            "  const float r0 = at_least(v0, v1);\n", "  const float r0 = at_most(v0, v2);\n",
            "  const float r0 = at_most(at_least(v0, v1), v2);\n"};
    int which = 0;
    for (uint32_t i = 1; i < 3; i++) {
        const devbay_tensor *limit = input_of(node, i);
        if (limit != NULL && n_elements(limit) != 1) {
            return fail(node->error, DEVBAY_STATUS_INVALID, "a limit of more than one number");
        }
        which |= limit != NULL ? 1 << (i - 1) : 0;
    }
    return prepare_map(plan, node, FLOATS, "float", NULL, bodies[which], "r0");
}

devbay_status prepare_gelu(struct plan *plan, const struct node *node) {
    static const float none[2] = {0, 0};
    int is_tanh = attr_is(node, "approximate", "none", "tanh");
    if (!is_tanh && !attr_is(node, "approximate", "none", "none")) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "approximate is none or tanh");
    }
    const char *op = is_tanh ? "GeluTanh" : "Gelu";
    return prepare_one(plan, node, find_formula(op, strlen(op)), none);
}

/* The ops of a node that has several. */
struct fused {
    devbay_list ops;
    devbay_list operands;
    devbay_list params;
    devbay_list constants;
};

/* An op of a fused node; NULL for one that has no formula. */
static const struct formula *fused_op(const struct fused *fused, uint64_t i) {
    const devbay_str *op = DEVBAY_AT(&fused->ops, i);
    return find_formula(op->ptr, op->len);
}

static devbay_status read_fused(const struct node *node, struct fused *fused) {
    *fused = (struct fused){
            .ops = attr_list(node, "ops"),
            .operands = attr_list(node, "operands"),
            .params = attr_list(node, "params"),
            .constants = attr_list(node, "constants"),
    };
    uint64_t n = fused->ops.len;
    if (n == 0 || fused->operands.len != 2 * n || fused->params.len != 2 * n ||
            node->n_inputs > FLOATS_MAX) {
        return fail(node->error, DEVBAY_STATUS_INVALID,
                "ops, operands and params that do not fit together, or too many inputs");
    }
    for (uint64_t i = 0; i < n; i++) {
        const devbay_str *op = DEVBAY_AT(&fused->ops, i);
        if (fused_op(fused, i) == NULL) {
            return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "%.*s among fused ops",
                    (int)op->len, op->ptr);
        }
    }
    return DEVBAY_STATUS_OK;
}

/* An operand of a fused op as an expression: an input, an earlier result, or a number. */
static devbay_status fused_operand(const struct node *node, const struct fused *fused,
        struct numbers *numbers, int64_t place, uint64_t step, char *out, size_t out_len) {
    if (place < 0) {
        uint64_t i = (uint64_t)(-1 - place);
        if (i < fused->constants.len) {
            write_number(numbers, (float)*(const double *)DEVBAY_AT(&fused->constants, i), out, out_len);
            return DEVBAY_STATUS_OK;
        }
    } else if ((uint64_t)place < node->n_inputs) {
        snprintf(out, out_len, "v%u", (unsigned)place);
        return DEVBAY_STATUS_OK;
    } else if ((uint64_t)place - node->n_inputs < step) {
        snprintf(out, out_len, "r%u", (unsigned)((uint64_t)place - node->n_inputs));
        return DEVBAY_STATUS_OK;
    }
    return fail(node->error, DEVBAY_STATUS_INVALID, "operand %lld of step %llu", (long long)place,
            (unsigned long long)step);
}

devbay_status prepare_fused(struct plan *plan, const struct node *node) {
    struct fused fused;
    TRY(read_fused(node, &fused));
    struct text body = {0};
    struct numbers numbers = {0};
    devbay_status status = DEVBAY_STATUS_OK;
    for (uint64_t i = 0; i < fused.ops.len && status == DEVBAY_STATUS_OK; i++) {
        char operands[2][EXPRESSION_MAX] = {"", ""};
        float attrs[2];
        for (uint64_t k = 0; k < 2 && status == DEVBAY_STATUS_OK; k++) {
            attrs[k] = (float)*(const double *)DEVBAY_AT(&fused.params, 2 * i + k);
            status = fused_operand(node, &fused, &numbers, list_int(&fused.operands, 2 * i + k, 0), i,
                    operands[k], sizeof(operands[k]));
        }
        append_op(&body, &numbers, fused_op(&fused, i), (uint32_t)i, operands[0], operands[1],
                attrs);
    }
    char result[16];
    snprintf(result, sizeof(result), "r%u", (unsigned)(fused.ops.len - 1));
    if (status == DEVBAY_STATUS_OK && body.is_broken) {
        status = fail(node->error, DEVBAY_STATUS_OUT_OF_MEMORY, "no memory for a kernel's text");
    }
    if (status == DEVBAY_STATUS_OK) {
        status = prepare_map(plan, node, FLOATS, "float", &numbers, body.ptr, result);
    }
    free(body.ptr);
    return status;
}

uint64_t flops_formula(const struct node *node) {
    return flops_of_output(node) * formula_of(node)->flops;
}

uint64_t flops_fused(const struct node *node) {
    struct fused fused;
    uint64_t flops = 0;
    if (read_fused(node, &fused) == DEVBAY_STATUS_OK) {
        for (uint64_t i = 0; i < fused.ops.len; i++) {
            flops += fused_op(&fused, i)->flops;
        }
    }
    return flops_of_output(node) * flops;
}

/* The type of OpenCL C for a dtype's elements; truth values are bytes. */
static const char *c_type(devbay_dtype dtype) {
    switch (dtype.code) {
    case DEVBAY_DTYPE_FLOAT:
        return "float";
    case DEVBAY_DTYPE_INT:
        return dtype.bits == 64 ? "long" : dtype.bits == 32 ? "int" : "char";
    default:
        return "uchar";
    }
}

devbay_status prepare_where(struct plan *plan, const struct node *node) {
    const char *type = c_type(node->outputs[0]->dtype);
    const char *types[] = {"uchar", type, type};
    return prepare_map(plan, node, types, type, NULL, "", "v0 ? v1 : v2");
}

devbay_status prepare_cast(struct plan *plan, const struct node *node) {
    const devbay_tensor *x = node->inputs[0], *y = node->outputs[0];
    const char *from = c_type(x->dtype);
    char result[64];
    if (!devbay_same_shape(x, y)) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "a cast to another shape");
    }
    if (y->dtype.code == DEVBAY_DTYPE_BOOL) {
        snprintf(result, sizeof(result), "v0 != 0");
    } else {
        snprintf(result, sizeof(result), "(%s)v0", c_type(y->dtype));
    }
    return prepare_map(plan, node, &from, c_type(y->dtype), NULL, "", result);
}
