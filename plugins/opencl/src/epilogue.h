/* epilogue.h - what becomes of the sums of products and convolutions: an activation. */
#ifndef EPILOGUE_H
#define EPILOGUE_H

#include "node.h"

/* Which activation, and its numbers: a parameter of kernels, as the struct Activation of this text. */
struct activation {
    uint32_t kind;
    float a;
    float b;
};

#define ACTIVATION_SOURCE \
    "typedef struct { uint kind; float a; float b; } Activation;\n" \
    "float clip(float v, float low, float high) {\n" \
    "  v = v < low ? low : v;\n" \
    "  return v > high ? high : v;\n" \
    "}\n" \
    "float activated(float v, Activation f) {\n" \
    "  switch (f.kind) {\n" \
    "  case 1: return v < 0.0f ? 0.0f : v;\n" \
    "  case 2: return v < 0.0f ? f.a * v : v;\n" \
    "  case 3: return clip(v, f.a, f.b);\n" \
    "  case 4: return clip(f.a * v + f.b, 0.0f, 1.0f);\n" \
    "  case 5: return v * clip(v * 0.16666667f + 0.5f, 0.0f, 1.0f);\n" \
    "  case 6: return 1.0f / (1.0f + exp(-v));\n" \
    "  case 7: return tanh(v);\n" \
    "  case 8: return v / (1.0f + exp(-v));\n" \
    "  default: return v;\n" \
    "  }\n" \
    "}\n"

/* Reads it from a node's attributes. */
devbay_status read_activation(const struct node *node, struct activation *out);

#endif
