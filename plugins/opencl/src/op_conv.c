/* op_conv.c - convolutions over one to three axes, and their transposes. */
#include "epilogue.h"
#include "kernels.h"
#include "window.h"

#include <string.h>

/* Whether `pads` says what is put around an image: no auto_pad, or the empty one. */
static int pads_are_given(const struct node *node) {
    return attr_is(node, "auto_pad", "NOTSET", "NOTSET") || attr_is(node, "auto_pad", "NOTSET", "");
}

devbay_status read_window(const struct node *node, const devbay_tensor *x, const int64_t *kernel,
        int rounds_up, struct window *out) {
    uint32_t n = x->rank - 2, first = AXES - n;
    devbay_list given = attr_list(node, "kernel_shape"), strides = attr_list(node, "strides");
    devbay_list dilations = attr_list(node, "dilations"), pads = attr_list(node, "pads");
    int is_given = pads_are_given(node);
    int is_upper = attr_is(node, "auto_pad", "NOTSET", "SAME_UPPER");
    int is_lower = attr_is(node, "auto_pad", "NOTSET", "SAME_LOWER");
    for (uint32_t i = 0; i < AXES; i++) {
        out->in[i] = out->out[i] = out->kernel[i] = out->stride[i] = out->dilation[i] = 1;
        out->before[i] = out->after[i] = 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        int64_t size = list_int(&given, i, kernel != NULL ? kernel[i] : 0);
        int64_t stride = list_int(&strides, i, 1), dilation = list_int(&dilations, i, 1);
        int64_t before = is_given ? list_int(&pads, i, 0) : 0;
        int64_t after = is_given ? list_int(&pads, n + i, 0) : 0;
        int64_t in = x->shape[2 + i], limit = 1 << 24;
        if (size < 1 || stride < 1 || dilation < 1 || before < 0 || after < 0 ||
                (kernel != NULL && size != kernel[i])) {
            return fail(node->error, DEVBAY_STATUS_INVALID, "a window's extents, strides or pads");
        }
        if (in < 1 || in > limit || size > limit || stride > limit || dilation > limit) {
            return fail(node->error, DEVBAY_STATUS_UNSUPPORTED,
                    "a window over nothing, or extents or strides beyond 24 bits");
        }
        int64_t reach = (size - 1) * dilation + 1;
        if (is_upper || is_lower) {
            int64_t count = (in + stride - 1) / stride;
            int64_t pad = (count - 1) * stride + reach - in;
            pad = pad > 0 ? pad : 0;
            before = is_upper ? pad / 2 : pad - pad / 2;
            after = pad - before;
        }
        if (before > limit || after > limit) {
            return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "pads beyond 24 bits");
        }
        int64_t room = in + before + after - reach;
        if (room < 0) {
            return fail(node->error, DEVBAY_STATUS_INVALID, "a window larger than its image");
        }
        int64_t count = (rounds_up ? room + stride - 1 : room) / stride + 1;
        /* A window that begins behind the image is none. */
        if (rounds_up && (count - 1) * stride >= in + before) {
            count--;
        }
        out->in[first + i] = (uint32_t)in;
        out->out[first + i] = (uint32_t)count;
        out->kernel[first + i] = (uint32_t)size;
        out->stride[first + i] = (uint32_t)stride;
        out->dilation[first + i] = (uint32_t)dilation;
        out->before[first + i] = (int32_t)before;
        out->after[first + i] = (int32_t)after;
    }
    return DEVBAY_STATUS_OK;
}

devbay_status expect_image(
        const struct node *node, uint32_t batch, uint32_t channels, const struct window *window) {
    uint32_t rank = node->inputs[0]->rank;
    int64_t shape[2 + AXES] = {batch, channels};
    for (uint32_t i = 2; i < rank; i++) {
        shape[i] = window->out[AXES - (rank - 2) + i - 2];
    }
    return expect_output(node, 0, shape, rank);
}

/* A work item makes one place of TILE channels of a group: what it reads of the image, it uses for all
 * of them. Weights are [channels out, channels in of a group, window], or, packed, [channels out / TILE,
 * channels in of a group, window, TILE]. */
static const char CONV_SOURCE[] = ACTIVATION_SOURCE WINDOW_SOURCE
        "#if TILE == 8\n"
        "typedef float8 Tile;\n"
        "#define LOAD vload8\n"
        "#define STORE vstore8\n"
        "#else\n"
        "typedef float4 Tile;\n"
        "#define LOAD vload4\n"
        "#define STORE vstore4\n"
        "#endif\n"
        "__kernel void conv(IN(float, x), IN(float, w), IN(float, bias), IN(float, added),\n"
        "                   OUT(float, y), const uint n, const uint has_bias, const uint has_added,\n"
        "                   const uint groups, const uint of_group, const uint to_group,\n"
        "                   const Window p, const Activation f) {\n"
        "  const uint i = get_global_id(0);\n"
        "  if (i >= n) return;\n"
        "  const uint places = p.out[0] * p.out[1] * p.out[2], out = i % places;\n"
        "  const uint tiles = groups * to_group / TILE, oc = i / places % tiles * TILE;\n"
        "  const uint batch = i / places / tiles, group = oc / to_group;\n"
        "  const uint taps = p.kernel_size[0] * p.kernel_size[1] * p.kernel_size[2];\n"
        "  const uint plane = p.in[0] * p.in[1] * p.in[2];\n"
        "  const int d0 = (int)(out / (p.out[1] * p.out[2]) * p.stride[0]) - p.before[0];\n"
        "  const int h0 = (int)(out / p.out[2] % p.out[1] * p.stride[1]) - p.before[1];\n"
        "  const int w0 = (int)(out % p.out[2] * p.stride[2]) - p.before[2];\n"
        "  __global const float *image = x + x_at + (batch * groups + group) * of_group * plane;\n"
        "  __global const float *weights = w + w_at + oc * of_group * taps;\n"
        "#if TILE == 1\n"
        "  float sums = 0.0f;\n"
        "#else\n"
        "  Tile sums = (Tile)(0.0f);\n"
        "#endif\n"
        "  for (uint c = 0; c < of_group; c++) {\n"
        "    for (uint kd = 0; kd < p.kernel_size[0]; kd++) {\n"
        "      const int d = d0 + (int)(kd * p.dilation[0]);\n"
        "      const bool is_plane = d >= 0 && d < (int)p.in[0];\n"
        "      for (uint kh = 0; kh < p.kernel_size[1]; kh++) {\n"
        "        const int h = h0 + (int)(kh * p.dilation[1]);\n"
        "        const bool is_row = is_plane && h >= 0 && h < (int)p.in[1];\n"
        "        __global const float *row = image + c * plane + (d * p.in[1] + h) * p.in[2];\n"
        "        const uint tap = ((c * p.kernel_size[0] + kd) * p.kernel_size[1] + kh) *\n"
        "                         p.kernel_size[2];\n"
        "        for (uint kw = 0; kw < p.kernel_size[2]; kw++) {\n"
        "          const int v = w0 + (int)(kw * p.dilation[2]);\n"
        /* Padding is zeros that are multiplied: an infinite weight on it gives NaN. */
        "          const float a = is_row && v >= 0 && v < (int)p.in[2] ? row[v] : 0.0f;\n"
        "#if TILE == 1\n"
        "          sums = fma(a, weights[tap + kw], sums);\n"
        "#else\n"
        "          sums = fma((Tile)(a), LOAD(tap + kw, weights), sums);\n"
        "#endif\n"
        "        }\n"
        "      }\n"
        "    }\n"
        "  }\n"
        "  float results[TILE];\n"
        "#if TILE == 1\n"
        "  results[0] = sums;\n"
        "#else\n"
        "  STORE(sums, 0, results);\n"
        "#endif\n"
        "  for (uint t = 0; t < TILE; t++) {\n"
        "    const uint at = (batch * groups * to_group + oc + t) * places + out;\n"
        "    float v = results[t];\n"
        "    if (has_bias) v += bias[bias_at + oc + t];\n"
        "    if (has_added) v += added[added_at + at];\n"
        "    y[y_at + at] = activated(v, f);\n"
        "  }\n"
        "}\n";

/* A place of the result takes what of the image reaches it. Weights are [channels in, channels out of a
 * group, window]. */
static const char TRANSPOSE_SOURCE[] = WINDOW_SOURCE
        "__kernel void conv_transpose(IN(float, x), IN(float, w), IN(float, bias), OUT(float, y),\n"
        "                             const uint n, const uint has_bias, const uint groups,\n"
        "                             const uint of_group, const uint to_group, const Window p) {\n"
        "  const uint i = get_global_id(0);\n"
        "  if (i >= n) return;\n"
        "  const uint places = p.out[0] * p.out[1] * p.out[2], out = i % places;\n"
        "  const uint oc = i / places % (groups * to_group), batch = i / places / (groups * to_group);\n"
        "  const uint group = oc / to_group;\n"
        "  const uint taps = p.kernel_size[0] * p.kernel_size[1] * p.kernel_size[2];\n"
        "  const uint plane = p.in[0] * p.in[1] * p.in[2];\n"
        "  const int at[3] = {(int)(out / (p.out[1] * p.out[2])), (int)(out / p.out[2] % p.out[1]),\n"
        "                     (int)(out % p.out[2])};\n"
        "  float sum = 0.0f;\n"
        "  for (uint tap = 0; tap < taps; tap++) {\n"
        "    const uint k[3] = {tap / (p.kernel_size[1] * p.kernel_size[2]),\n"
        "                       tap / p.kernel_size[2] % p.kernel_size[1], tap % p.kernel_size[2]};\n"
        "    bool is_hit = true;\n"
        "    uint from = 0;\n"
        "    for (uint d = 0; d < 3; d++) {\n"
        "      const int shifted = at[d] + p.before[d] - (int)(k[d] * p.dilation[d]);\n"
        "      const int own = shifted / (int)p.stride[d];\n"
        "      is_hit = is_hit && shifted >= 0 && own * (int)p.stride[d] == shifted &&\n"
        "               own < (int)p.in[d];\n"
        "      from = from * p.in[d] + (uint)own;\n"
        "    }\n"
        "    if (!is_hit) continue;\n"
        "    for (uint c = 0; c < of_group; c++) {\n"
        "      const uint ic = group * of_group + c;\n"
        "      sum = fma(x[x_at + (batch * groups * of_group + ic) * plane + from],\n"
        "                w[w_at + (ic * to_group + oc % to_group) * taps + tap], sum);\n"
        "    }\n"
        "  }\n"
        "  y[y_at + i] = has_bias ? sum + bias[bias_at + oc] : sum;\n"
        "}\n";

struct conv {
    struct window window;
    uint32_t batch, groups, of_group, to_group;
};

static devbay_status read_conv(const struct node *node, int is_transposed, struct conv *out) {
    const devbay_tensor *x = node->inputs[0], *w = node->inputs[1], *bias = input_of(node, 2);
    int64_t groups = attr_int(node, "group", 1);
    if (x->rank < 3 || x->rank > 2 + AXES || w->rank != x->rank) {
        return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "images of other than 1 to 3 axes");
    }
    if (groups < 1 || groups > x->shape[1] || x->shape[1] % groups != 0 || w->shape[0] % groups != 0 ||
            w->shape[is_transposed ? 0 : 1] != (is_transposed ? x->shape[1] : x->shape[1] / groups)) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "channels that do not fit the groups");
    }
    out->batch = extent(x, 0);
    out->groups = (uint32_t)groups;
    out->of_group = extent(x, 1) / out->groups;
    out->to_group = is_transposed ? extent(w, 1) : extent(w, 0) / out->groups;
    if (bias != NULL && (bias->rank != 1 || extent(bias, 0) != out->groups * out->to_group)) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "a bias of other than the channels");
    }
    return DEVBAY_STATUS_OK;
}

devbay_status prepare_conv(struct plan *plan, const struct node *node) {
    struct conv conv;
    struct activation activation;
    const devbay_tensor *x = node->inputs[0], *w = node->inputs[1], *y = node->outputs[0];
    const devbay_tensor *added = input_of(node, 3);
    TRY(read_conv(node, 0, &conv));
    TRY(read_window(node, x, w->shape + 2, 0, &conv.window));
    TRY(expect_image(node, conv.batch, conv.groups * conv.to_group, &conv.window));
    TRY(read_activation(node, &activation));
    if (added != NULL && !devbay_same_shape(added, y)) {
        return fail(node->error, DEVBAY_STATUS_INVALID, "what is added has another shape");
    }
    uint32_t tile = 1;
    if (wants_packing(node, 1)) {
        tile = conv.to_group % 8 == 0 ? 8 : conv.to_group % 4 == 0 ? 4 : 1;
    }
    if (tile > 1) {
        plan->packing = (struct packing){1, extent(w, 0), product(w, 1, w->rank), tile};
    }
    uint32_t n = n_elements(y) / tile;
    const char *options = tile == 8 ? "-DTILE=8" : tile == 4 ? "-DTILE=4" : "-DTILE=1";
    struct step *step;
    TRY(step_begin(plan, CONV_SOURCE, options, "conv", n, &step));
    arg_input(step, plan, 0);
    arg_input(step, plan, 1);
    arg_input(step, plan, input_of(node, 2) != NULL ? 2 : 0);
    arg_input(step, plan, added != NULL ? 3 : 0);
    arg_output(step, plan, 0);
    arg_u32(step, n);
    arg_u32(step, input_of(node, 2) != NULL);
    arg_u32(step, added != NULL);
    arg_u32(step, conv.groups);
    arg_u32(step, conv.of_group);
    arg_u32(step, conv.to_group);
    arg_struct(step, &conv.window, sizeof(conv.window));
    arg_struct(step, &activation, sizeof(activation));
    return DEVBAY_STATUS_OK;
}

devbay_status prepare_conv_transpose(struct plan *plan, const struct node *node) {
    struct conv conv;
    const devbay_tensor *x = node->inputs[0], *w = node->inputs[1], *y = node->outputs[0];
    TRY(read_conv(node, 1, &conv));
    if (!pads_are_given(node) || attr_list(node, "output_shape").len > 0) {
        return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "pads that are not given");
    }
    /* Seen from the result, it is a convolution's input: its extents are calculated the other way. */
    uint32_t n_axes = x->rank - 2, first = AXES - n_axes;
    devbay_list strides = attr_list(node, "strides"), dilations = attr_list(node, "dilations");
    devbay_list pads = attr_list(node, "pads"), more = attr_list(node, "output_padding");
    struct window *window = &conv.window;
    for (uint32_t i = 0; i < AXES; i++) {
        window->in[i] = window->out[i] = window->kernel[i] = 1;
        window->stride[i] = window->dilation[i] = 1;
        window->before[i] = window->after[i] = 0;
    }
    for (uint32_t i = 0; i < n_axes; i++) {
        int64_t in = x->shape[2 + i], size = w->shape[2 + i], limit = 1 << 24;
        int64_t stride = list_int(&strides, i, 1), dilation = list_int(&dilations, i, 1);
        int64_t before = list_int(&pads, i, 0), after = list_int(&pads, n_axes + i, 0);
        int64_t added = list_int(&more, i, 0);
        if (size < 1 || stride < 1 || dilation < 1 || before < 0 || after < 0 || added < 0) {
            return fail(node->error, DEVBAY_STATUS_INVALID, "a window's extents, strides or pads");
        }
        if (in < 1 || in > limit || size > limit || stride > limit || dilation > limit ||
                before > limit || after > limit || added > limit) {
            return fail(node->error, DEVBAY_STATUS_UNSUPPORTED,
                    "a window over nothing, or extents, strides or pads beyond 24 bits");
        }
        int64_t count = stride * (in - 1) + added + (size - 1) * dilation + 1 - before - after;
        if (count < 1 || count > INT32_MAX) {
            return fail(node->error, DEVBAY_STATUS_UNSUPPORTED,
                    "pads that leave nothing, or a result beyond 31 bits");
        }
        window->in[first + i] = (uint32_t)in;
        window->out[first + i] = (uint32_t)count;
        window->kernel[first + i] = (uint32_t)size;
        window->stride[first + i] = (uint32_t)stride;
        window->dilation[first + i] = (uint32_t)dilation;
        window->before[first + i] = (int32_t)before;
    }
    TRY(expect_image(node, conv.batch, conv.groups * conv.to_group, window));
    struct step *step;
    TRY(step_begin(plan, TRANSPOSE_SOURCE, "", "conv_transpose", n_elements(y), &step));
    arg_input(step, plan, 0);
    arg_input(step, plan, 1);
    arg_input(step, plan, input_of(node, 2) != NULL ? 2 : 0);
    arg_output(step, plan, 0);
    arg_u32(step, n_elements(y));
    arg_u32(step, input_of(node, 2) != NULL);
    arg_u32(step, conv.groups);
    arg_u32(step, conv.of_group);
    arg_u32(step, conv.to_group);
    arg_struct(step, window, sizeof(*window));
    return DEVBAY_STATUS_OK;
}

uint64_t flops_conv(const struct node *node) {
    const devbay_tensor *w = node->inputs[1];
    return w->rank > 1 ? 2 * flops_of_output(node) * product(w, 1, w->rank) : 0;
}

uint64_t flops_conv_transpose(const struct node *node) {
    const devbay_tensor *w = node->inputs[1];
    return w->rank > 1 ? UINT64_C(2) * n_elements(node->inputs[0]) * product(w, 1, w->rank) : 0;
}
