/* op_product.c - products of matrices: MatMul, Gemm, and the same with an activation. */
#include "epilogue.h"
#include "kernels.h"

#include <string.h>

/* A work item makes four rows of four columns: what it reads, it uses four times. */
#define TILE 4u

/* A parameter of the kernel, as the struct Product of its text. */
struct product_sizes {
    uint32_t m, n, k;
    uint32_t a_row, a_k;
    uint32_t b_k, b_col;
    uint32_t has_c, c_row, c_col;
    float alpha, beta;
};

static const char SOURCE[] = ACTIVATION_SOURCE
        "typedef struct {\n"
        "  uint m, n, k;\n"
        "  uint a_row, a_k;\n"
        "  uint b_k, b_col;\n"
        "  uint has_c, c_row, c_col;\n"
        "  float alpha, beta;\n"
        "} Product;\n"
        "__kernel void product(IN(float, a), IN(float, b), IN(float, c), OUT(float, y),\n"
        "                      const uint n_items, const Product p, const Walk a_batch,\n"
        "                      const Walk b_batch, const Activation f) {\n"
        "  const uint i = get_global_id(0);\n"
        "  if (i >= n_items) return;\n"
        "  const uint tiles_n = (p.n + 3) / 4, tiles_m = (p.m + 3) / 4;\n"
        "  const uint col = i % tiles_n * 4, row = i / tiles_n % tiles_m * 4;\n"
        "  const uint batch = i / (tiles_n * tiles_m);\n"
        "  __global const float *rows[4], *cols[4];\n"
        "  for (uint t = 0; t < 4; t++) {\n"
        "    rows[t] = a + a_at + place(batch, &a_batch) + min(row + t, p.m - 1) * p.a_row;\n"
        "    cols[t] = b + b_at + place(batch, &b_batch) + min(col + t, p.n - 1) * p.b_col;\n"
        "  }\n"
        "  float4 sums[4] = {(float4)(0.0f), (float4)(0.0f), (float4)(0.0f), (float4)(0.0f)};\n"
        "  for (uint k = 0; k < p.k; k++) {\n"
        "    const uint at = k * p.b_k;\n"
        "    const float4 v = (float4)(cols[0][at], cols[1][at], cols[2][at], cols[3][at]);\n"
        "    for (uint t = 0; t < 4; t++) sums[t] = fma((float4)(rows[t][k * p.a_k]), v, sums[t]);\n"
        "  }\n"
        "  for (uint t = 0; t < 4 && row + t < p.m; t++) {\n"
        "    const float s[4] = {sums[t].x, sums[t].y, sums[t].z, sums[t].w};\n"
        "    for (uint u = 0; u < 4 && col + u < p.n; u++) {\n"
        "      float v = p.alpha * s[u];\n"
        "      if (p.has_c) v += p.beta * c[c_at + (row + t) * p.c_row + (col + u) * p.c_col];\n"
        "      y[y_at + (batch * p.m + row + t) * p.n + col + u] = activated(v, f);\n"
        "    }\n"
        "  }\n"
        "}\n";

devbay_status read_activation(const struct node *node, struct activation *out) {
    static const struct {
        const char *name;
        uint32_t n_params;
    } known[] = {{"", 0}, {"Relu", 0}, {"LeakyRelu", 1}, {"Clip", 2}, {"HardSigmoid", 2},
            {"HardSwish", 0}, {"Sigmoid", 0}, {"Tanh", 0}, {"Silu", 0}};
    devbay_list params = attr_list(node, "activation_params");
    for (uint32_t kind = 0; kind < sizeof(known) / sizeof(known[0]); kind++) {
        if (attr_is(node, "activation", "", known[kind].name)) {
            if (params.len < known[kind].n_params) {
                return fail(node->error, DEVBAY_STATUS_INVALID, "an activation without its numbers");
            }
            double a = known[kind].n_params > 0 ? *(const double *)DEVBAY_AT(&params, 0) : 0;
            double b = known[kind].n_params > 1 ? *(const double *)DEVBAY_AT(&params, 1) : 0;
            *out = (struct activation){kind, (float)a, (float)b};
            return DEVBAY_STATUS_OK;
        }
    }
    return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "an activation that is not known");
}

/* Adds the launch. `c` is the input that is added, if the sizes say so. */
static devbay_status add_product(struct plan *plan, const struct product_sizes *sizes,
        uint32_t n_batch, const struct walk *a_batch, const struct walk *b_batch, uint32_t c) {
    struct activation activation;
    TRY(read_activation(plan->node, &activation));
    uint64_t n_items = (uint64_t)n_batch * ((sizes->m + TILE - 1) / TILE) *
                       ((sizes->n + TILE - 1) / TILE);
    if (n_items == 0) {
        return DEVBAY_STATUS_OK;
    }
    struct step *step;
    TRY(step_begin(plan, SOURCE, "", "product", (uint32_t)n_items, &step));
    arg_input(step, plan, 0);
    arg_input(step, plan, 1);
    arg_input(step, plan, sizes->has_c ? c : 0);
    arg_output(step, plan, 0);
    arg_u32(step, (uint32_t)n_items);
    arg_struct(step, sizes, sizeof(*sizes));
    arg_walk(step, a_batch);
    arg_walk(step, b_batch);
    arg_struct(step, &activation, sizeof(activation));
    return DEVBAY_STATUS_OK;
}

/* A MatMul's matrices: a vector is a matrix of one row or one column. */
struct matmul {
    uint32_t m, n, k;
    uint32_t n_batch;
    struct walk a_batch, b_batch;
};

static devbay_status read_matmul(const struct node *node, struct matmul *out) {
    const devbay_tensor *a = node->inputs[0], *b = node->inputs[1];
    memset(out, 0, sizeof(*out));
    if (a->rank == 0 || b->rank == 0) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "a product of a scalar");
    }
    out->m = a->rank > 1 ? extent(a, a->rank - 2) : 1;
    out->k = extent(a, a->rank - 1);
    out->n = b->rank > 1 ? extent(b, b->rank - 1) : 1;
    if (extent(b, b->rank > 1 ? b->rank - 2 : 0) != out->k) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "%u columns by another number of rows",
                (unsigned)out->k);
    }
    /* The axes in front of the matrices are broadcast. */
    uint32_t a_axes = a->rank > 2 ? a->rank - 2 : 0, b_axes = b->rank > 2 ? b->rank - 2 : 0;
    uint32_t axes = a_axes > b_axes ? a_axes : b_axes, rank = axes;
    int64_t shape[RANK_MAX + 2];
    for (uint32_t axis = 0; axis < axes; axis++) {
        int64_t own_a = axis + a_axes >= axes ? a->shape[axis + a_axes - axes] : 1;
        int64_t own_b = axis + b_axes >= axes ? b->shape[axis + b_axes - axes] : 1;
        if (own_a != own_b && own_a != 1 && own_b != 1) {
            return fail(node->error, DEVBAY_STATUS_INVALID, "batches that cannot be broadcast");
        }
        shape[axis] = own_a != 1 ? own_a : own_b;
    }
    devbay_tensor batches = {.rank = axes, .shape = shape};
    devbay_tensor of_a = {.rank = a_axes, .shape = a->shape}, of_b = {.rank = b_axes, .shape = b->shape};
    out->n_batch = n_elements(&batches);
    broadcast_walk(&of_a, &batches, &out->a_batch);
    broadcast_walk(&of_b, &batches, &out->b_batch);
    for (uint32_t axis = 0; axis < axes; axis++) {
        out->a_batch.strides[axis] *= out->m * out->k;
        out->b_batch.strides[axis] *= out->k * out->n;
    }
    if (a->rank > 1) {
        shape[rank++] = out->m;
    }
    if (b->rank > 1) {
        shape[rank++] = out->n;
    }
    return expect_output(node, 0, shape, rank);
}

devbay_status prepare_matmul(struct plan *plan, const struct node *node) {
    struct matmul matmul;
    TRY(read_matmul(node, &matmul));
    const devbay_tensor *bias = input_of(node, 2);
    if (bias != NULL && (bias->rank != 1 || extent(bias, 0) != matmul.n)) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "a bias that is no vector of the columns");
    }
    struct product_sizes sizes = {
            .m = matmul.m, .n = matmul.n, .k = matmul.k,
            .a_row = matmul.k, .a_k = 1, .b_k = matmul.n, .b_col = 1,
            .has_c = bias != NULL, .c_col = 1, .alpha = 1, .beta = 1,
    };
    return add_product(plan, &sizes, matmul.n_batch, &matmul.a_batch, &matmul.b_batch, 2);
}

static devbay_status read_gemm(const struct node *node, struct product_sizes *out) {
    const devbay_tensor *a = node->inputs[0], *b = node->inputs[1], *c = input_of(node, 2);
    int is_a = attr_int(node, "transA", 0) != 0, is_b = attr_int(node, "transB", 0) != 0;
    if (a->rank != 2 || b->rank != 2) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "Gemm of other than two matrices");
    }
    *out = (struct product_sizes){
            .m = extent(a, is_a ? 1 : 0), .k = extent(a, is_a ? 0 : 1), .n = extent(b, is_b ? 0 : 1),
            .alpha = (float)attr_float(node, "alpha", 1), .beta = (float)attr_float(node, "beta", 1),
    };
    if (extent(b, is_b ? 1 : 0) != out->k) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "%u columns by another number of rows",
                (unsigned)out->k);
    }
    out->a_row = is_a ? 1 : out->k;
    out->a_k = is_a ? out->m : 1;
    out->b_k = is_b ? 1 : out->n;
    out->b_col = is_b ? out->k : 1;
    int64_t shape[2] = {out->m, out->n};
    TRY(expect_output(node, 0, shape, 2));
    if (c != NULL) {
        struct walk walk;
        if (!broadcast_walk(c, node->outputs[0], &walk)) {
            return fail(node->error, DEVBAY_STATUS_INVALID, "C cannot be broadcast");
        }
        out->has_c = 1;
        out->c_row = walk.strides[0];
        out->c_col = walk.strides[1];
    }
    return DEVBAY_STATUS_OK;
}

devbay_status prepare_gemm(struct plan *plan, const struct node *node) {
    static const struct walk whole = {0};
    struct product_sizes sizes;
    TRY(read_gemm(node, &sizes));
    return add_product(plan, &sizes, 1, &whole, &whole, 2);
}

uint64_t flops_matmul(const struct node *node) {
    const devbay_tensor *a = node->inputs[0];
    return a->rank > 0 ? 2 * flops_of_output(node) * extent(a, a->rank - 1) : 0;
}

uint64_t flops_gemm(const struct node *node) {
    struct product_sizes sizes;
    return read_gemm(node, &sizes) == DEVBAY_STATUS_OK
                   ? UINT64_C(2) * sizes.m * sizes.n * sizes.k
                   : 0;
}
