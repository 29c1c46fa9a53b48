/* kernels.c - the entry, and the table of kernels (B20). */
#include "kernels.h"

#include "formulas.h"

/* What operands may be. */
static const devbay_dtype f32[] = {{DEVBAY_DTYPE_FLOAT, 32, 1}};
static const devbay_dtype truth[] = {{DEVBAY_DTYPE_BOOL, 8, 1}};
static const devbay_dtype index_dtypes[] = {{DEVBAY_DTYPE_INT, 64, 1}, {DEVBAY_DTYPE_INT, 32, 1}};
static const devbay_dtype word[] = {{DEVBAY_DTYPE_UINT, 32, 1}};
static const devbay_dtype random_dtypes[] = {{DEVBAY_DTYPE_FLOAT, 32, 1}, {DEVBAY_DTYPE_UINT, 32, 1}};
static const devbay_dtype long_dtypes[] = {{DEVBAY_DTYPE_INT, 64, 1}};
static const devbay_dtype cast_dtypes[] = {{DEVBAY_DTYPE_FLOAT, 32, 1}, {DEVBAY_DTYPE_INT, 64, 1},
        {DEVBAY_DTYPE_INT, 32, 1}, {DEVBAY_DTYPE_BOOL, 8, 1}};
static const devbay_dtype moved_dtypes[] = {{DEVBAY_DTYPE_FLOAT, 32, 1}, {DEVBAY_DTYPE_INT, 64, 1},
        {DEVBAY_DTYPE_INT, 32, 1}, {DEVBAY_DTYPE_BOOL, 8, 1}, {DEVBAY_DTYPE_UINT, 8, 1},
        {DEVBAY_DTYPE_INT, 8, 1}, {DEVBAY_DTYPE_FLOAT, 64, 1}, {DEVBAY_DTYPE_FLOAT, 16, 1},
        {DEVBAY_DTYPE_BFLOAT, 16, 1}, {DEVBAY_DTYPE_INT, 16, 1}, {DEVBAY_DTYPE_UINT, 16, 1},
        {DEVBAY_DTYPE_UINT, 32, 1}, {DEVBAY_DTYPE_UINT, 64, 1}};

#define VAR(dtypes) {sizeof(devbay_type_var), sizeof(dtypes) / sizeof((dtypes)[0]), (dtypes)}
static const devbay_type_var floats[] = {VAR(f32)};
static const devbay_type_var moved[] = {VAR(moved_dtypes), VAR(long_dtypes)};
static const devbay_type_var gathered[] = {VAR(moved_dtypes), VAR(index_dtypes)};
static const devbay_type_var padded[] = {VAR(moved_dtypes), VAR(long_dtypes), VAR(index_dtypes)};
static const devbay_type_var sliced[] = {VAR(moved_dtypes), VAR(index_dtypes)};
static const devbay_type_var reduced[] = {VAR(f32), VAR(long_dtypes)};
static const devbay_type_var resized[] = {VAR(f32), VAR(f32), VAR(long_dtypes)};
static const devbay_type_var chosen[] = {VAR(truth), VAR(cast_dtypes)};
static const devbay_type_var randoms[] = {VAR(word), VAR(long_dtypes), VAR(random_dtypes)};
static const devbay_type_var cast[] = {VAR(cast_dtypes), VAR(cast_dtypes)};

/* Which of these each operand is. */
static const uint8_t all_0[] = {0};
static const uint8_t vars_0_1[] = {0, 1};
static const uint8_t vars_0_1_0_2[] = {0, 1, 0, 2};
static const uint8_t vars_0_1_1_2[] = {0, 1, 1, 2};
static const uint8_t vars_0_1_1[] = {0, 1, 1};
static const uint8_t only_1[] = {1};
static const uint8_t only_2[] = {2};

/* Which input an output may share its memory with. */
static const int16_t in_place_0[] = {0};

#define OPERANDS(min, max) .n_inputs_min = min, .n_inputs_max = max, .n_outputs_min = 1
#define ONE_OUTPUT .n_outputs_max = 1
#define COMMON(version) \
    .struct_size = sizeof(devbay_kernel_info), .since_version = version, \
    .flags = DEVBAY_KERNEL_DETERMINISTIC
#define TYPES(vars, inputs, outputs) \
    .typevars = DEVBAY_LIST(vars), .input_typevars = DEVBAY_LIST(inputs), \
    .output_typevars = DEVBAY_LIST(outputs)
#define F32 TYPES(floats, all_0, all_0)
#define IN_PLACE .in_place = DEVBAY_LIST(in_place_0)
#define KNOWN(bits) .host_value_inputs = bits
/* Those that it reads, and those that say nothing for the operands that it takes, such as a rounding of
 * 8-bit floats. */
#define ATTRS(...) (const char *const[]) {__VA_ARGS__, NULL}
#define NO_ATTRS ATTRS(NULL)
#define WINDOW "auto_pad", "dilations", "kernel_shape", "pads", "strides"
#define ACTIVATION "activation", "activation_params"

const struct kernel kernels[] = {
#define X(name, of, version, n, cost, text, attr0, absent0, attr1, absent1) \
    {{COMMON(version), .domain = DEVBAY_STR(of), .op = DEVBAY_STR(#name), OPERANDS(n, n), ONE_OUTPUT, F32, IN_PLACE}, \
            prepare_formula, flops_formula, ATTRS(attr0, attr1)},
        FORMULAS(X)
#undef X
        {{COMMON(13), .op = DEVBAY_STR("Clip"), OPERANDS(1, 3), ONE_OUTPUT, F32, IN_PLACE},
                prepare_clip, flops_of_output, NO_ATTRS},
        {{COMMON(20), .op = DEVBAY_STR("Gelu"), OPERANDS(1, 1), ONE_OUTPUT, F32, IN_PLACE},
                prepare_gelu, flops_of_output, ATTRS("approximate")},
        {{COMMON(1), .domain = DEVBAY_STR("devbay"), .op = DEVBAY_STR("FusedElementwise"),
                OPERANDS(1, DEVBAY_VARIADIC), ONE_OUTPUT, F32, IN_PLACE,
                .doc = DEVBAY_STR("one kernel, written when the node is prepared")},
                prepare_fused, flops_fused, ATTRS("constants", "operands", "ops", "params")},
        {{COMMON(16), .op = DEVBAY_STR("Where"), OPERANDS(3, 3), ONE_OUTPUT,
                TYPES(chosen, vars_0_1_1, only_1)},
                prepare_where, flops_none, NO_ATTRS},
        {{COMMON(25), .op = DEVBAY_STR("Cast"), OPERANDS(1, 1), ONE_OUTPUT,
                TYPES(cast, all_0, only_1)},
                prepare_cast, flops_none, ATTRS("round_mode", "saturate", "to")},
        {{COMMON(1), .domain = DEVBAY_STR("devbay"), .op = DEVBAY_STR("Philox"), OPERANDS(2, 2), ONE_OUTPUT,
                TYPES(randoms, vars_0_1, only_2), KNOWN(2)},
                prepare_philox, flops_philox, ATTRS("dtype", "key", "stream")},

        {{COMMON(21), .op = DEVBAY_STR("Transpose"), OPERANDS(1, 1), ONE_OUTPUT,
                TYPES(moved, all_0, all_0)},
                prepare_transpose, flops_none, ATTRS("perm")},
        {{COMMON(13), .op = DEVBAY_STR("Slice"), OPERANDS(3, 5), ONE_OUTPUT,
                TYPES(sliced, vars_0_1, all_0), KNOWN(30)},
                prepare_slice, flops_none, NO_ATTRS},
        {{COMMON(13), .op = DEVBAY_STR("Expand"), OPERANDS(2, 2), ONE_OUTPUT,
                TYPES(moved, vars_0_1, all_0), KNOWN(2)},
                prepare_expand, flops_none, NO_ATTRS},
        {{COMMON(13), .op = DEVBAY_STR("Concat"), OPERANDS(1, DEVBAY_VARIADIC), ONE_OUTPUT,
                TYPES(moved, all_0, all_0)},
                prepare_concat, flops_none, ATTRS("axis")},
        {{COMMON(18), .op = DEVBAY_STR("Split"), OPERANDS(1, 2), .n_outputs_max = DEVBAY_VARIADIC,
                TYPES(moved, vars_0_1, all_0), KNOWN(2)},
                prepare_split, flops_none, ATTRS("axis", "num_outputs")},
        {{COMMON(21), .op = DEVBAY_STR("Pad"), OPERANDS(2, 4), ONE_OUTPUT,
                TYPES(padded, vars_0_1_0_2, all_0), KNOWN(10),
                .doc = DEVBAY_STR("mode constant")},
                prepare_pad, flops_none, ATTRS("mode")},
        {{COMMON(13), .op = DEVBAY_STR("Gather"), OPERANDS(2, 2), ONE_OUTPUT,
                TYPES(gathered, vars_0_1, all_0)},
                prepare_gather, flops_none, ATTRS("axis")},

        {{COMMON(13), .op = DEVBAY_STR("MatMul"), OPERANDS(2, 2), ONE_OUTPUT, F32},
                prepare_matmul, flops_matmul, NO_ATTRS},
        {{COMMON(1), .domain = DEVBAY_STR("devbay"), .op = DEVBAY_STR("FusedMatMul"), OPERANDS(2, 3),
                ONE_OUTPUT, F32},
                prepare_matmul, flops_matmul, ATTRS(ACTIVATION)},
        {{COMMON(13), .op = DEVBAY_STR("Gemm"), OPERANDS(2, 3), ONE_OUTPUT, F32},
                prepare_gemm, flops_gemm, ATTRS("alpha", "beta", "transA", "transB")},
        {{COMMON(1), .domain = DEVBAY_STR("devbay"), .op = DEVBAY_STR("FusedGemm"), OPERANDS(2, 3),
                ONE_OUTPUT, F32},
                prepare_gemm, flops_gemm, ATTRS("alpha", "beta", "transA", "transB", ACTIVATION)},
        {{COMMON(11), .op = DEVBAY_STR("Conv"), OPERANDS(2, 3), ONE_OUTPUT, F32},
                prepare_conv, flops_conv, ATTRS(WINDOW, "group")},
        {{COMMON(1), .domain = DEVBAY_STR("devbay"), .op = DEVBAY_STR("FusedConv"), OPERANDS(2, 4),
                ONE_OUTPUT, F32},
                prepare_conv, flops_conv, ATTRS(WINDOW, "group", ACTIVATION)},
        {{COMMON(11), .op = DEVBAY_STR("ConvTranspose"), OPERANDS(2, 3), ONE_OUTPUT, F32},
                prepare_conv_transpose, flops_conv_transpose, ATTRS(WINDOW, "group", "output_padding", "output_shape")},
        {{COMMON(12), .op = DEVBAY_STR("MaxPool"), OPERANDS(1, 1), ONE_OUTPUT, F32},
                prepare_max_pool, flops_pool, ATTRS(WINDOW, "ceil_mode", "storage_order")},
        {{COMMON(19), .op = DEVBAY_STR("AveragePool"), OPERANDS(1, 1), ONE_OUTPUT, F32},
                prepare_average_pool, flops_pool, ATTRS(WINDOW, "ceil_mode", "count_include_pad")},
        {{COMMON(1), .op = DEVBAY_STR("GlobalAveragePool"), OPERANDS(1, 1), ONE_OUTPUT, F32},
                prepare_global_average_pool, flops_of_input, NO_ATTRS},
        {{COMMON(1), .op = DEVBAY_STR("GlobalMaxPool"), OPERANDS(1, 1), ONE_OUTPUT, F32},
                prepare_global_max_pool, flops_of_input, NO_ATTRS},
        {{COMMON(19), .op = DEVBAY_STR("Resize"), OPERANDS(1, 4), ONE_OUTPUT,
                TYPES(resized, vars_0_1_1_2, all_0), KNOWN(14),
                .doc = DEVBAY_STR("nearest and linear, of the last two axes")},
                prepare_resize, flops_of_output, ATTRS("antialias", "axes", "coordinate_transformation_mode",
                        "cubic_coeff_a", "exclude_outside", "extrapolation_value", "keep_aspect_ratio_policy", "mode", "nearest_mode")},

        {{COMMON(13), .op = DEVBAY_STR("ReduceSum"), OPERANDS(1, 2), ONE_OUTPUT,
                TYPES(reduced, vars_0_1, all_0), KNOWN(2)},
                prepare_reduce_sum, flops_of_input, ATTRS("keepdims", "noop_with_empty_axes")},
        {{COMMON(18), .op = DEVBAY_STR("ReduceMean"), OPERANDS(1, 2), ONE_OUTPUT,
                TYPES(reduced, vars_0_1, all_0), KNOWN(2)},
                prepare_reduce_mean, flops_of_input, ATTRS("keepdims", "noop_with_empty_axes")},
        {{COMMON(20), .op = DEVBAY_STR("ReduceMax"), OPERANDS(1, 2), ONE_OUTPUT,
                TYPES(reduced, vars_0_1, all_0), KNOWN(2)},
                prepare_reduce_max, flops_of_input, ATTRS("keepdims", "noop_with_empty_axes")},
        {{COMMON(20), .op = DEVBAY_STR("ReduceMin"), OPERANDS(1, 2), ONE_OUTPUT,
                TYPES(reduced, vars_0_1, all_0), KNOWN(2)},
                prepare_reduce_min, flops_of_input, ATTRS("keepdims", "noop_with_empty_axes")},
        {{COMMON(13), .op = DEVBAY_STR("Softmax"), OPERANDS(1, 1), ONE_OUTPUT, F32},
                prepare_softmax, flops_softmax, ATTRS("axis")},
        {{COMMON(13), .op = DEVBAY_STR("LogSoftmax"), OPERANDS(1, 1), ONE_OUTPUT, F32},
                prepare_log_softmax, flops_softmax, ATTRS("axis")},
        {{COMMON(17), .op = DEVBAY_STR("LayerNormalization"), OPERANDS(2, 3), ONE_OUTPUT, F32},
                prepare_layer_norm, flops_softmax, ATTRS("axis", "epsilon", "stash_type")},
        {{COMMON(15), .op = DEVBAY_STR("BatchNormalization"), OPERANDS(5, 5), ONE_OUTPUT, F32},
                prepare_batch_norm, flops_of_output, ATTRS("epsilon", "momentum", "training_mode")},
};

const uint32_t n_kernels = sizeof(kernels) / sizeof(kernels[0]);

uint64_t flops_of_output(const struct node *node) {
    return node->outputs[0] != NULL ? n_elements(node->outputs[0]) : 0;
}

uint64_t flops_none(const struct node *node) {
    (void)node;
    return 0;
}

/* Checks one side's operands: each type variable is one dtype. */
static devbay_status check_side(const struct node *node, const devbay_tensor *const *operands,
        uint32_t n, uint32_t n_min, uint32_t n_max, const devbay_list *vars,
        const devbay_list *typevars, devbay_dtype *dtypes, uint32_t *is_set, const char *side) {
    if (n < n_min || (n_max != DEVBAY_VARIADIC && n > n_max)) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "%u %s", (unsigned)n, side);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (operands[i] == NULL) {
            if (i < n_min) {
                return fail(node->error, DEVBAY_STATUS_INVALID, "no %u of the %s", (unsigned)i, side);
            }
            continue;
        }
        uint32_t var = *(const uint8_t *)DEVBAY_AT(vars, i < vars->len ? i : vars->len - 1);
        const devbay_type_var *of = DEVBAY_AT(typevars, var);
        devbay_dtype found = operands[i]->dtype;
        int is_known = 0;
        for (uint32_t k = 0; k < of->n_dtypes; k++) {
            is_known |= of->dtypes[k].code == found.code && of->dtypes[k].bits == found.bits;
        }
        int is_other = (*is_set & (1u << var)) != 0 &&
                       (dtypes[var].code != found.code || dtypes[var].bits != found.bits);
        if (!is_known || is_other) {
            return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "the dtype of %u of the %s",
                    (unsigned)i, side);
        }
        dtypes[var] = found;
        *is_set |= 1u << var;
    }
    return DEVBAY_STATUS_OK;
}

devbay_status kernel_check(const struct kernel *kernel, const struct node *node) {
    const devbay_kernel_info *info = &kernel->info;
    devbay_dtype dtypes[8];
    uint32_t is_set = 0;
    size_t n_attrs = 0;
    while (kernel->attrs[n_attrs] != NULL) {
        n_attrs++;
    }
    const devbay_attr *attr = devbay_unknown_attr(&node->desc->attrs, kernel->attrs, n_attrs);
    if (attr != NULL) {
        return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "the attribute %.*s, which the kernel does not read",
                (int)attr->name.len, attr->name.ptr);
    }
    TRY(check_side(node, node->inputs, node->n_inputs, info->n_inputs_min, info->n_inputs_max,
            &info->input_typevars, &info->typevars, dtypes, &is_set, "inputs"));
    return check_side(node, node->outputs, node->n_outputs, info->n_outputs_min, info->n_outputs_max,
            &info->output_typevars, &info->typevars, dtypes, &is_set, "outputs");
}

static const devbay_str profiles[] = {DEVBAY_STR("base"), DEVBAY_STR("kernels")};

static const devbay_option_info options[] = {
        {
                .struct_size = sizeof(devbay_option_info),
                .key = DEVBAY_STR("devices"),
                .default_value = DEVBAY_STR("all"),
                .doc = DEVBAY_STR("which of OpenCL's devices: all, gpu, cpu or accelerator"),
        },
        {
                .struct_size = sizeof(devbay_option_info),
                .key = DEVBAY_STR("checks"),
                .default_value = DEVBAY_STR("yes"),
                .doc = DEVBAY_STR("yes, or no to clamp indices out of range in silence, where they would "
                                  "fail the run"),
        },
};

static const devbay_plugin_info info = {
        .struct_size = sizeof(devbay_plugin_info),
        .abi_minor_min = DEVBAY_ABI_MINOR_MIN,
        .abi_minor_max = DEVBAY_ABI_MINOR,
        .threading = DEVBAY_THREADING_FREE,
        .name = DEVBAY_STR("opencl"),
        .vendor = DEVBAY_STR("devbay"),
        .version = DEVBAY_STR("0.1.0"),
        .table = &plugin_table,
        .profiles = DEVBAY_LIST(profiles),
        /* The list steps by the larger struct that each descriptor begins (B5). */
        .kernels = DEVBAY_LIST(kernels),
        .options = DEVBAY_LIST(options),
};

const devbay_plugin_info *DEVBAY_ENTRY(void) {
    return &info;
}
