/* op_pool.c - pools and Resize: what is made of the places of an image that lie near each other. */
#include "kernels.h"
#include "window.h"

#include <string.h>

static const char POOL_SOURCE[] = WINDOW_SOURCE
        /* Taps of a window from `at` on that lie before the image's end, or so much behind it. */
        "uint taps(const Window *p, uint axis, int at, int behind) {\n"
        "  const int room = (int)p->in[axis] + behind - at, step = (int)p->dilation[axis];\n"
        "  return room <= 0 ? 0 : min(p->kernel_size[axis], (uint)((room + step - 1) / step));\n"
        "}\n"
        /* Taps that lie in the padding before the image. */
        "uint pads(const Window *p, uint axis, int at) {\n"
        "  const int step = (int)p->dilation[axis];\n"
        "  return at >= 0 ? 0 : (uint)((step - 1 - at) / step);\n"
        "}\n"
        "__kernel void pool(IN(float, x), OUT(float, y), const uint n, const uint is_max,\n"
        "                   const uint counts_pads, const Window p) {\n"
        "  const uint i = get_global_id(0);\n"
        "  if (i >= n) return;\n"
        "  const uint places = p.out[0] * p.out[1] * p.out[2], out = i % places;\n"
        "  const uint plane = p.in[0] * p.in[1] * p.in[2];\n"
        "  const int d0 = (int)(out / (p.out[1] * p.out[2]) * p.stride[0]) - p.before[0];\n"
        "  const int h0 = (int)(out / p.out[2] % p.out[1] * p.stride[1]) - p.before[1];\n"
        "  const int w0 = (int)(out % p.out[2] * p.stride[2]) - p.before[2];\n"
        "  __global const float *image = x + x_at + i / places * plane;\n"
        "  float all = is_max ? -INFINITY : 0.0f;\n"
        "  const uint d1 = taps(&p, 0, d0, 0), h1 = taps(&p, 1, h0, 0), w1 = taps(&p, 2, w0, 0);\n"
        "  const uint df = pads(&p, 0, d0), hf = pads(&p, 1, h0), wf = pads(&p, 2, w0);\n"
        "  for (uint kd = df; kd < d1; kd++) {\n"
        "    const int d = d0 + (int)(kd * p.dilation[0]);\n"
        "    for (uint kh = hf; kh < h1; kh++) {\n"
        "      const int h = h0 + (int)(kh * p.dilation[1]);\n"
        "      for (uint kw = wf; kw < w1; kw++) {\n"
        "        const int v = w0 + (int)(kw * p.dilation[2]);\n"
        "        const float a = image[(d * p.in[1] + h) * p.in[2] + v];\n"
        "        all = !is_max ? all + a : a != a || a > all ? a : all;\n"
        "      }\n"
        "    }\n"
        "  }\n"
        /* Rounding up makes windows that reach beyond the pads: those places do not count. */
        "  float count = counts_pads\n"
        "      ? (float)taps(&p, 0, d0, p.after[0]) * (float)taps(&p, 1, h0, p.after[1]) *\n"
        "            (float)taps(&p, 2, w0, p.after[2])\n"
        "      : (float)(d1 > df ? d1 - df : 0) * (float)(h1 > hf ? h1 - hf : 0) *\n"
        "            (float)(w1 > wf ? w1 - wf : 0);\n"
        /* The mean of padding alone is 0. */
        "  y[y_at + i] = is_max ? all : all / max(count, 1.0f);\n"
        "}\n";

static devbay_status prepare_pool(struct plan *plan, const struct node *node, int is_max) {
    const devbay_tensor *x = node->inputs[0], *y = node->outputs[0];
    struct window window;
    if (x->rank < 3 || x->rank > 2 + AXES || attr_list(node, "kernel_shape").len != x->rank - 2) {
        return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "images of other than 1 to 3 axes");
    }
    TRY(read_window(node, x, NULL, attr_int(node, "ceil_mode", 0) != 0, &window));
    TRY(expect_image(node, extent(x, 0), extent(x, 1), &window));
    struct step *step;
    TRY(step_begin(plan, POOL_SOURCE, "", "pool", n_elements(y), &step));
    arg_input(step, plan, 0);
    arg_output(step, plan, 0);
    arg_u32(step, n_elements(y));
    arg_u32(step, is_max != 0);
    arg_u32(step, attr_int(node, "count_include_pad", 0) != 0);
    arg_struct(step, &window, sizeof(window));
    return DEVBAY_STATUS_OK;
}

devbay_status prepare_max_pool(struct plan *plan, const struct node *node) {
    return prepare_pool(plan, node, 1);
}

devbay_status prepare_average_pool(struct plan *plan, const struct node *node) {
    return prepare_pool(plan, node, 0);
}

uint64_t flops_pool(const struct node *node) {
    devbay_list kernel = attr_list(node, "kernel_shape");
    uint64_t flops = flops_of_output(node);
    for (uint64_t i = 0; i < kernel.len; i++) {
        flops *= (uint64_t)list_int(&kernel, i, 1);
    }
    return flops;
}

/* A parameter of the kernel, as the struct Resize of its text. */
struct resize {
    uint32_t in[2];
    uint32_t out[2];
    float scale[2];
    uint32_t coordinates;
    uint32_t rounding;
    uint32_t is_linear;
};

/* The two innermost axes are resized. */
static const char RESIZE_SOURCE[] =
        "typedef struct { uint in[2], out[2]; float scale[2]; uint coordinates, rounding, is_linear; }\n"
        "    Resize;\n"
        "float source(const Resize *p, uint axis, uint at) {\n"
        "  switch (p->coordinates) {\n"
        "  case 0: return ((float)at + 0.5f) / p->scale[axis] - 0.5f;\n"
        "  case 1: return (float)at / p->scale[axis];\n"
        "  case 2: return p->out[axis] > 1 ? ((float)at + 0.5f) / p->scale[axis] - 0.5f : 0.0f;\n"
        /* The result has as many places as the scale gives, which need not be a whole number. */
        "  default: {\n"
        "    const float places = (float)p->in[axis] * p->scale[axis];\n"
        "    return places == 1.0f ? 0.0f : (float)at * (float)(p->in[axis] - 1) / (places - 1.0f);\n"
        "  }\n"
        "  }\n"
        "}\n"
        "uint nearest(const Resize *p, uint axis, float at) {\n"
        "  const float rounded = p->rounding == 0 ? ceil(at - 0.5f) : p->rounding == 1\n"
        "                        ? floor(at + 0.5f) : p->rounding == 2 ? floor(at) : ceil(at);\n"
        "  return (uint)clamp((int)rounded, 0, (int)p->in[axis] - 1);\n"
        "}\n"
        "__kernel void resize(IN(float, x), OUT(float, y), const uint n, const Resize p) {\n"
        "  const uint i = get_global_id(0);\n"
        "  if (i >= n) return;\n"
        "  __global const float *image = x + x_at + i / (p.out[0] * p.out[1]) * (p.in[0] * p.in[1]);\n"
        "  const float h = source(&p, 0, i / p.out[1] % p.out[0]), w = source(&p, 1, i % p.out[1]);\n"
        "  if (!p.is_linear) {\n"
        "    y[y_at + i] = image[nearest(&p, 0, h) * p.in[1] + nearest(&p, 1, w)];\n"
        "    return;\n"
        "  }\n"
        "  const float ch = clamp(h, 0.0f, (float)(p.in[0] - 1));\n"
        "  const float cw = clamp(w, 0.0f, (float)(p.in[1] - 1));\n"
        "  const uint h0 = (uint)ch, w0 = (uint)cw;\n"
        "  const uint h1 = min(h0 + 1, p.in[0] - 1), w1 = min(w0 + 1, p.in[1] - 1);\n"
        "  const float fh = ch - (float)h0, fw = cw - (float)w0;\n"
        "  const float upper = image[h0 * p.in[1] + w0] * (1.0f - fw) + image[h0 * p.in[1] + w1] * fw;\n"
        "  const float lower = image[h1 * p.in[1] + w0] * (1.0f - fw) + image[h1 * p.in[1] + w1] * fw;\n"
        "  y[y_at + i] = upper * (1.0f - fh) + lower * fh;\n"
        "}\n";

/* The position of a text attribute among words; -1 for another one. */
static int choice(const struct node *node, const char *name, const char *const *words, int n) {
    for (int i = 0; i < n; i++) {
        if (attr_is(node, name, words[0], words[i])) {
            return i;
        }
    }
    return -1;
}

devbay_status prepare_resize(struct plan *plan, const struct node *node) {
    static const char *const coordinates[] = {
            "half_pixel", "asymmetric", "pytorch_half_pixel", "align_corners"};
    static const char *const roundings[] = {
            "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"};
    static const char *const modes[] = {"nearest", "linear"};
    const devbay_tensor *x = node->inputs[0], *y = node->outputs[0], *scales = input_of(node, 2);
    int coordinate = choice(node, "coordinate_transformation_mode", coordinates, 4);
    int rounding = choice(node, "nearest_mode", roundings, 4), mode = choice(node, "mode", modes, 2);
    if (coordinate < 0 || rounding < 0 || mode < 0 || attr_int(node, "antialias", 0) != 0 ||
            attr_int(node, "exclude_outside", 0) != 0 || attr_list(node, "axes").len > 0 ||
            !attr_is(node, "keep_aspect_ratio_policy", "stretch", "stretch")) {
        return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "a mode, a policy, or given axes");
    }
    if (x->rank < 2 || y->rank != x->rank) {
        return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "fewer than two axes");
    }
    for (uint32_t axis = 0; axis + 2 < x->rank; axis++) {
        if (x->shape[axis] != y->shape[axis]) {
            return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "axes but the last two resized");
        }
    }
    struct resize resize = {.coordinates = (uint32_t)coordinate, .rounding = (uint32_t)rounding,
            .is_linear = mode == 1};
    int has_scales = scales != NULL && n_elements(scales) == x->rank;
    if (has_scales && (!DEVBAY_HAS(devbay_tensor, scales, constant_bytes) ||
                              (scales->flags & DEVBAY_TENSOR_CONSTANT) == 0)) {
        return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "scales that are not known");
    }
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t axis = x->rank - 2 + i;
        resize.in[i] = extent(x, axis);
        resize.out[i] = extent(y, axis);
        resize.scale[i] = (float)resize.out[i] / (float)resize.in[i];
        if (has_scales) {
            memcpy(&resize.scale[i], (const char *)scales->constant + axis * sizeof(float),
                    sizeof(float));
            double size = (double)resize.in[i] * (double)resize.scale[i];
            if (size < resize.out[i] || size >= (double)resize.out[i] + 1) {
                return fail(node->error, DEVBAY_STATUS_INVALID, "an output that the scales do not give");
            }
        }
    }
    if (n_elements(x) == 0) {
        return fail(node->error, DEVBAY_STATUS_UNSUPPORTED, "an image of nothing");
    }
    struct step *step;
    TRY(step_begin(plan, RESIZE_SOURCE, "", "resize", n_elements(y), &step));
    arg_input(step, plan, 0);
    arg_output(step, plan, 0);
    arg_u32(step, n_elements(y));
    arg_struct(step, &resize, sizeof(resize));
    return DEVBAY_STATUS_OK;
}
