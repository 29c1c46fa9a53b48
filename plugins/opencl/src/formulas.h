/* formulas.h - elementwise ops as formulas: their kernels, and those of several fused, are written of
 * them (op_map.c). Generated from ops/src/table.rs by `cargo run --example formulas_h`; do not edit.
 *
 * X(op, domain, version of the op, operands, arithmetic operations, formula, attributes with their defaults).
 * A formula is OpenCL C over the operands a and b and the attributes k0 and k1. NaN passes wherever
 * ONNX's reference lets it pass.
 */
#ifndef FORMULAS_H
#define FORMULAS_H

#define FORMULAS(X) \
    X(Abs, "", 13, 1, 1, "fabs(a)", NULL, 0, NULL, 0) \
    X(Acos, "", 22, 1, 40, "acos(a)", NULL, 0, NULL, 0) \
    X(Acosh, "", 22, 1, 40, "acosh(a)", NULL, 0, NULL, 0) \
    X(Add, "", 14, 2, 1, "a + b", NULL, 0, NULL, 0) \
    X(Asin, "", 22, 1, 40, "asin(a)", NULL, 0, NULL, 0) \
    X(Asinh, "", 22, 1, 40, "asinh(a)", NULL, 0, NULL, 0) \
    X(Atan, "", 22, 1, 40, "atan(a)", NULL, 0, NULL, 0) \
    X(Atanh, "", 22, 1, 40, "atanh(a)", NULL, 0, NULL, 0) \
    X(Ceil, "", 13, 1, 1, "ceil(a)", NULL, 0, NULL, 0) \
    X(Celu, "", 28, 1, 25, "(a > 0.0f) ? a : (k0 * expm1((a / k0)))", "alpha", 1.0f, NULL, 0) \
    X(Cos, "", 22, 1, 40, "cos(a)", NULL, 0, NULL, 0) \
    X(Cosh, "", 22, 1, 40, "cosh(a)", NULL, 0, NULL, 0) \
    X(Div, "", 14, 2, 1, "a / b", NULL, 0, NULL, 0) \
    X(Elu, "", 22, 1, 25, "(a > 0.0f) ? a : (k0 * expm1(a))", "alpha", 1.0f, NULL, 0) \
    X(Erf, "", 13, 1, 40, "erf_to_1(a)", NULL, 0, NULL, 0) \
    X(Exp, "", 13, 1, 20, "exp(a)", NULL, 0, NULL, 0) \
    X(Floor, "", 13, 1, 1, "floor(a)", NULL, 0, NULL, 0) \
    X(HardSigmoid, "", 22, 1, 4, "clip(((k0 * a) + k1), 0.0f, 1.0f)", "alpha", 0.2f, "beta", 0.5f) \
    X(HardSwish, "", 22, 1, 5, "a * clip(((a * 0.16666667f) + 0.5f), 0.0f, 1.0f)", NULL, 0, NULL, \
            0) \
    X(LeakyRelu, "", 16, 1, 2, "(a < 0.0f) ? (k0 * a) : a", "alpha", 0.01f, NULL, 0) \
    X(Log, "", 13, 1, 30, "log(a)", NULL, 0, NULL, 0) \
    X(Max, "", 13, 2, 1, "larger(a, b)", NULL, 0, NULL, 0) \
    X(Min, "", 13, 2, 1, "smaller(a, b)", NULL, 0, NULL, 0) \
    X(Mish, "", 22, 1, 90, "a * tanh_to_1(softplus(a))", NULL, 0, NULL, 0) \
    X(Mul, "", 14, 2, 1, "a * b", NULL, 0, NULL, 0) \
    X(Neg, "", 13, 1, 1, "-a", NULL, 0, NULL, 0) \
    X(PRelu, "", 16, 2, 2, "(a < 0.0f) ? (a * b) : a", NULL, 0, NULL, 0) \
    X(Pow, "", 15, 2, 60, "pow(a, b)", NULL, 0, NULL, 0) \
    X(Reciprocal, "", 13, 1, 1, "1.0f / a", NULL, 0, NULL, 0) \
    X(Relu, "", 14, 1, 1, "at_least(a, 0.0f)", NULL, 0, NULL, 0) \
    X(Round, "", 22, 1, 1, "rint(a)", NULL, 0, NULL, 0) \
    X(Selu, "", 22, 1, 25, "k1 * ((a > 0.0f) ? a : (k0 * expm1(a)))", "alpha", 1.6732632f, \
            "gamma", 1.050701f) \
    X(Shrink, "", 9, 1, 3, "(a > k1) ? (a - k0) : ((a < -k1) ? (a + k0) : 0.0f)", "bias", 0, \
            "lambd", 0.5f) \
    X(Sigmoid, "", 13, 1, 25, "sigmoid(a)", NULL, 0, NULL, 0) \
    X(Sign, "", 13, 1, 2, "sign_of(a)", NULL, 0, NULL, 0) \
    X(Sin, "", 22, 1, 40, "sin(a)", NULL, 0, NULL, 0) \
    X(Sinh, "", 22, 1, 40, "sinh(a)", NULL, 0, NULL, 0) \
    X(Softplus, "", 22, 1, 50, "softplus(a)", NULL, 0, NULL, 0) \
    X(Softsign, "", 22, 1, 3, "a / (1.0f + fabs(a))", NULL, 0, NULL, 0) \
    X(Sqrt, "", 13, 1, 1, "sqrt(a)", NULL, 0, NULL, 0) \
    X(Sub, "", 14, 2, 1, "a - b", NULL, 0, NULL, 0) \
    X(Sum, "", 13, 2, 1, "a + b", NULL, 0, NULL, 0) \
    X(Swish, "", 24, 1, 30, "a * sigmoid((k0 * a))", "alpha", 1.0f, NULL, 0) \
    X(Tan, "", 22, 1, 40, "tan(a)", NULL, 0, NULL, 0) \
    X(Tanh, "", 13, 1, 35, "tanh_to_1(a)", NULL, 0, NULL, 0) \
    X(ThresholdedRelu, "", 22, 1, 1, "(a > k0) ? a : 0.0f", "alpha", 1.0f, NULL, 0) \
    X(Binarizer, "ai.onnx.ml", 1, 1, 1, "(a > k0) ? 1.0f : 0.0f", "threshold", 0, NULL, 0) \
    X(QuickGelu, "com.microsoft", 1, 1, 30, "a * sigmoid((k0 * a))", "alpha", 1.702f, NULL, 0)

/* Those that are fused alone, or whose kernel reads its attributes itself. */
#define FUSED_FORMULAS(X) \
    X(Clip, "", 13, 1, 2, "clip(a, k0, k1)", "min", 0, "max", 0) \
    X(Gelu, "", 20, 1, 45, "(0.5f * a) * (1.0f + erf_to_1((a * 0.70710677f)))", NULL, 0, NULL, 0) \
    X(GeluTanh, "", 20, 1, 45, \
            "(0.5f * a) * (1.0f + tanh_to_1((0.7978846f * (a + (((0.044715f * a) * a) * a)))))", \
            NULL, 0, NULL, 0)

#endif
