/* op_random.c - devbay's Philox: random numbers from a seed, the same bits as on the processor. */
#include "kernels.h"

/* A work item makes a block of four. An f32 takes the upper 24 bits, which it holds exactly. */
static const char SOURCE[] =
        "__kernel void philox(IN(uint, seed), OUT(T, y), const uint n, const uint stream,\n"
        "                     const uint has_key, const uint key_low, const uint key_high) {\n"
        "  const uint i = get_global_id(0);\n"
        "  if (i >= (n + 3u) / 4u) return;\n"
        "  uint4 counter = (uint4)(i, stream, seed[seed_at + 2], seed[seed_at + 3]);\n"
        "  uint2 key = has_key ? (uint2)(key_low, key_high)\n"
        "                      : (uint2)(seed[seed_at], seed[seed_at + 1]);\n"
        "  for (uint round = 0; round < 10; round++) {\n"
        "    const uint first = mul_hi(0xd2511f53u, counter.x), second = mul_hi(0xcd9e8d57u, counter.z);\n"
        "    counter = (uint4)(second ^ counter.y ^ key.x, 0xcd9e8d57u * counter.z,\n"
        "                      first ^ counter.w ^ key.y, 0xd2511f53u * counter.x);\n"
        "    key += (uint2)(0x9e3779b9u, 0xbb67ae85u);\n"
        "  }\n"
        "  const uint words[4] = {counter.x, counter.y, counter.z, counter.w};\n"
        "  for (uint k = 0; k < 4u && k < n - 4u * i; k++) {\n"
        "#ifdef WORDS\n"
        "    y[y_at + 4u * i + k] = words[k];\n"
        "#else\n"
        "    y[y_at + 4u * i + k] = (float)(words[k] >> 8) * 0x1p-24f;\n"
        "#endif\n"
        "  }\n"
        "}\n";

/* ONNX's number of u32. */
#define ONNX_UINT32 12
#define ONNX_FLOAT 1

/* A number of 32 bits; INVALID for another one. */
static devbay_status word_of(const struct node *node, const char *name, int64_t value, uint32_t *out) {
    if (value < 0 || value > UINT32_MAX) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "%s is no number of 32 bits", name);
    }
    *out = (uint32_t)value;
    return DEVBAY_STATUS_OK;
}

devbay_status prepare_philox(struct plan *plan, const struct node *node) {
    const devbay_tensor *seed = node->inputs[0], *y = node->outputs[0];
    int64_t shape[RANK_MAX];
    uint32_t rank, stream = 0, key[2] = {0, 0};
    TRY(constant_ints(node, 1, shape, RANK_MAX, &rank));
    TRY(expect_output(node, 0, shape, rank));
    int is_words = y->dtype.code == DEVBAY_DTYPE_UINT;
    if (seed->rank != 1 || extent(seed, 0) != 4 ||
            attr_int(node, "dtype", ONNX_FLOAT) != (is_words ? ONNX_UINT32 : ONNX_FLOAT)) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "a seed of four words, and the attribute's dtype");
    }
    TRY(word_of(node, "stream", attr_int(node, "stream", 0), &stream));
    devbay_list given = attr_list(node, "key");
    if (given.len != 0 && given.len != 2) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "a key of two words");
    }
    for (uint32_t i = 0; i < given.len; i++) {
        TRY(word_of(node, "key", list_int(&given, i, 0), &key[i]));
    }
    struct step *step;
    uint32_t n = n_elements(y);
    TRY(step_begin(plan, SOURCE, is_words ? "-DT=uint -DWORDS" : "-DT=float", "philox",
            n / 4 + (n % 4 != 0), &step));
    arg_input(step, plan, 0);
    arg_output(step, plan, 0);
    arg_u32(step, n);
    arg_u32(step, stream);
    arg_u32(step, given.len == 2);
    arg_u32(step, key[0]);
    arg_u32(step, key[1]);
    return DEVBAY_STATUS_OK;
}

/* Ten rounds of two products for four words. */
uint64_t flops_philox(const struct node *node) {
    return 20 * flops_of_output(node);
}
