/* kernels.h - what the table has of each kernel. */
#ifndef KERNELS_H
#define KERNELS_H

#include "step.h"

/* The ABI's descriptor comes first: the list that the host reads has this struct's stride. */
struct kernel {
    devbay_kernel_info info;
    /* Adds the launches of a node whose operands kernel_check has looked at. */
    devbay_status (*prepare)(struct plan *plan, const struct node *node);
    /* Arithmetic operations of a launch; a multiply-add counts two. */
    uint64_t (*flops)(const struct node *node);
    /* Names of the attributes that it reads, behind the last one NULL; a node with another one is refused. */
    const char *const *attrs;
};

extern const struct kernel kernels[];
extern const uint32_t n_kernels;

/* Whether a node has as many operands as the kernel takes, of the types that it takes, and only attributes that it reads. */
devbay_status kernel_check(const struct kernel *kernel, const struct node *node);

/* One for each element of the result. */
uint64_t flops_of_output(const struct node *node);
/* None: bytes are moved. */
uint64_t flops_none(const struct node *node);

/* op_map.c */

/* How the elements of a tensor are walked where it is broadcast to another; 0 if it cannot be. */
int broadcast_walk(const devbay_tensor *from, const devbay_tensor *to, struct walk *walk);
devbay_status prepare_formula(struct plan *plan, const struct node *node);
devbay_status prepare_clip(struct plan *plan, const struct node *node);
devbay_status prepare_gelu(struct plan *plan, const struct node *node);
devbay_status prepare_fused(struct plan *plan, const struct node *node);
uint64_t flops_formula(const struct node *node);
uint64_t flops_fused(const struct node *node);
devbay_status prepare_where(struct plan *plan, const struct node *node);
devbay_status prepare_cast(struct plan *plan, const struct node *node);

/* op_random.c */
devbay_status prepare_philox(struct plan *plan, const struct node *node);
uint64_t flops_philox(const struct node *node);

/* op_move.c */
devbay_status prepare_transpose(struct plan *plan, const struct node *node);
devbay_status prepare_slice(struct plan *plan, const struct node *node);
devbay_status prepare_expand(struct plan *plan, const struct node *node);
devbay_status prepare_concat(struct plan *plan, const struct node *node);
devbay_status prepare_split(struct plan *plan, const struct node *node);
devbay_status prepare_pad(struct plan *plan, const struct node *node);
devbay_status prepare_gather(struct plan *plan, const struct node *node);

/* op_product.c */
devbay_status prepare_matmul(struct plan *plan, const struct node *node);
devbay_status prepare_gemm(struct plan *plan, const struct node *node);
uint64_t flops_matmul(const struct node *node);
uint64_t flops_gemm(const struct node *node);

/* op_conv.c */
devbay_status prepare_conv(struct plan *plan, const struct node *node);
devbay_status prepare_conv_transpose(struct plan *plan, const struct node *node);
uint64_t flops_conv(const struct node *node);
uint64_t flops_conv_transpose(const struct node *node);

/* op_pool.c */
devbay_status prepare_max_pool(struct plan *plan, const struct node *node);
devbay_status prepare_average_pool(struct plan *plan, const struct node *node);
devbay_status prepare_resize(struct plan *plan, const struct node *node);
uint64_t flops_pool(const struct node *node);

/* op_lines.c */
devbay_status prepare_reduce_sum(struct plan *plan, const struct node *node);
devbay_status prepare_reduce_mean(struct plan *plan, const struct node *node);
devbay_status prepare_reduce_max(struct plan *plan, const struct node *node);
devbay_status prepare_reduce_min(struct plan *plan, const struct node *node);
devbay_status prepare_global_average_pool(struct plan *plan, const struct node *node);
devbay_status prepare_global_max_pool(struct plan *plan, const struct node *node);
devbay_status prepare_softmax(struct plan *plan, const struct node *node);
devbay_status prepare_log_softmax(struct plan *plan, const struct node *node);
devbay_status prepare_layer_norm(struct plan *plan, const struct node *node);
devbay_status prepare_batch_norm(struct plan *plan, const struct node *node);
uint64_t flops_of_input(const struct node *node);
uint64_t flops_softmax(const struct node *node);

#endif
