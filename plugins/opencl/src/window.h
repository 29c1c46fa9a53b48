/* window.h - windows that move over images: what convolutions and pools have in common.
 *
 * An image is [batch, channels, spatial...]; one or two spatial axes are three with extents of 1 in
 * front.
 */
#ifndef WINDOW_H
#define WINDOW_H

#include "node.h"

#define AXES 3

/* A parameter of kernels, as the struct Window of WINDOW_SOURCE. */
struct window {
    uint32_t in[AXES];
    uint32_t out[AXES];
    uint32_t kernel[AXES];
    uint32_t stride[AXES];
    uint32_t dilation[AXES];
    int32_t before[AXES];
    int32_t after[AXES];
};

#define WINDOW_SOURCE \
    "typedef struct {\n" \
    "  uint in[3], out[3], kernel_size[3], stride[3], dilation[3];\n" \
    "  int before[3], after[3];\n" \
    "} Window;\n"

/* Reads the attributes of a window over `x`; `kernel` are its extents, where the node does not say.
 * What is in `out` and in `before` is calculated as Conv does it; a pool may round up. */
devbay_status read_window(const struct node *node, const devbay_tensor *x, const int64_t *kernel,
        int rounds_up, struct window *out);

/* The product of three extents. */
static inline uint32_t volume(const uint32_t *extents) {
    return extents[0] * extents[1] * extents[2];
}

/* INVALID if the output has not the batch, the channels and the extents of a window. */
devbay_status expect_image(
        const struct node *node, uint32_t batch, uint32_t channels, const struct window *window);

#endif
