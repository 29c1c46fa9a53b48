// The functions of cuDNN that the plugin calls, on the emulator's streams: convolutions of dense images, with sums in f32,
// and inputs rounded to f16 where the mode allows it. It refuses extents that do not fit, and a handle without a stream.
// EMULATOR_NO_ALGORITHM finds none; EMULATOR_COUNT says in the end how many convolutions there were.

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

typedef int Code;
typedef void *Handle;
typedef uint64_t Address;

// In cuda.cpp.
void enqueue(Handle stream, std::function<void()> what);

namespace {

const Code INVALID = 2000;

struct Dnn {
  Handle stream;
  bool has_stream;
};
struct Tensor {
  int type, n, c, h, w;
};
struct Window {
  int pad[2], stride[2], dilation[2], groups, math;
};

float load(Address at, int type, int64_t i) {
  if (type != 2) return ((const float *)at)[i];
  _Float16 value;
  memcpy(&value, (const uint16_t *)at + i, 2);
  return (float)value;
}

void store(Address at, int type, int64_t i, float value) {
  if (type != 2) {
    ((float *)at)[i] = value;
    return;
  }
  _Float16 narrow = (_Float16)value;
  memcpy((uint16_t *)at + i, &narrow, 2);
}

int places(int in, int kernel, int pad, int stride, int dilation) {
  return (in + 2 * pad - ((kernel - 1) * dilation + 1)) / stride + 1;
}

Code check(const Tensor *x, const Tensor *w, const Window *v, const Tensor *y) {
  bool fits = x->c == w->c * v->groups && w->n % v->groups == 0 && y->n == x->n && y->c == w->n;
  fits = fits && y->h == places(x->h, w->h, v->pad[0], v->stride[0], v->dilation[0]);
  fits = fits && y->w == places(x->w, w->w, v->pad[1], v->stride[1], v->dilation[1]);
  return fits && x->type == w->type && x->type == y->type ? 0 : INVALID;
}

const size_t WORKSPACE = 2048;

// Calls back with each result's place, channel and sum, on the stream.
Code convolve(Dnn *dnn, Tensor x, Address x_at, Tensor w, Address w_at, Window v, int algorithm, Address workspace,
              size_t n_workspace, Tensor y, std::function<void(int64_t, int, float)> give) {
  if (Code code = check(&x, &w, &v, &y)) return code;
  if (!dnn->has_stream || algorithm != 1 || n_workspace < WORKSPACE || !workspace) return INVALID;
  static std::atomic<int> count(0);
  if (getenv("EMULATOR_COUNT") && count++ == 0)
    atexit([] { fprintf(stderr, "emulator: %d convolutions\n", count.load()); });
  enqueue(dnn->stream, [=] {
    memset((void *)workspace, 0xAB, WORKSPACE);
    auto input = [&](Address at, int type, int64_t i) {
      float value = load(at, type, i);
      return v.math == 2 ? (float)(_Float16)value : value;
    };
    int per_group = w.n / v.groups;
    int64_t at = 0;
    for (int n = 0; n < y.n; n++)
      for (int k = 0; k < y.c; k++)
        for (int oh = 0; oh < y.h; oh++)
          for (int ow = 0; ow < y.w; ow++, at++) {
            float sum = 0;
            for (int c = 0; c < w.c; c++)
              for (int kh = 0; kh < w.h; kh++)
                for (int kw = 0; kw < w.w; kw++) {
                  int ih = oh * v.stride[0] - v.pad[0] + kh * v.dilation[0];
                  int iw = ow * v.stride[1] - v.pad[1] + kw * v.dilation[1];
                  if (ih < 0 || iw < 0 || ih >= x.h || iw >= x.w) continue;
                  int64_t channel = (int64_t)n * x.c + k / per_group * w.c + c;
                  sum += input(x_at, x.type, (channel * x.h + ih) * x.w + iw) *
                         input(w_at, w.type, (((int64_t)k * w.c + c) * w.h + kh) * w.w + kw);
                }
            give(at, k, sum);
          }
  });
  return 0;
}

struct Found {
  int algorithm, status;
  float time;
  size_t memory;
  int determinism, math, reserved[3];
};

}  // namespace

extern "C" {

Code cudnnCreate(Dnn **dnn) { return *dnn = new Dnn{nullptr, false}, 0; }
Code cudnnDestroy(Dnn *dnn) { return delete dnn, 0; }
Code cudnnSetStream(Dnn *dnn, Handle stream) { return *dnn = {stream, true}, 0; }

Code cudnnCreateTensorDescriptor(Tensor **desc) { return *desc = new Tensor{}, 0; }
Code cudnnDestroyTensorDescriptor(Tensor *desc) { return delete desc, 0; }
Code cudnnSetTensor4dDescriptor(Tensor *desc, int format, int type, int n, int c, int h, int w) {
  if (format != 0 || (type != 0 && type != 2) || n < 1 || c < 1 || h < 1 || w < 1) return INVALID;
  return *desc = {type, n, c, h, w}, 0;
}
Code cudnnCreateFilterDescriptor(Tensor **desc) { return *desc = new Tensor{}, 0; }
Code cudnnDestroyFilterDescriptor(Tensor *desc) { return delete desc, 0; }
Code cudnnSetFilter4dDescriptor(Tensor *desc, int type, int format, int k, int c, int h, int w) {
  return cudnnSetTensor4dDescriptor(desc, format, type, k, c, h, w);
}
Code cudnnCreateConvolutionDescriptor(Window **desc) { return *desc = new Window{}, 0; }
Code cudnnDestroyConvolutionDescriptor(Window *desc) { return delete desc, 0; }
Code cudnnSetConvolution2dDescriptor(Window *desc, int ph, int pw, int sh, int sw, int dh, int dw, int mode, int type) {
  if (mode != 1 || type != 0 || ph < 0 || pw < 0 || sh < 1 || sw < 1 || dh < 1 || dw < 1) return INVALID;
  return *desc = {{ph, pw}, {sh, sw}, {dh, dw}, 1, 0}, 0;
}
Code cudnnSetConvolutionGroupCount(Window *desc, int groups) { return desc->groups = groups, groups < 1 ? INVALID : 0; }
Code cudnnSetConvolutionMathType(Window *desc, int math) { return desc->math = math, math < 0 || math > 3 ? INVALID : 0; }
Code cudnnCreateActivationDescriptor(int **desc) { return *desc = new int(0), 0; }
Code cudnnDestroyActivationDescriptor(int *desc) { return delete desc, 0; }
Code cudnnSetActivationDescriptor(int *desc, int mode, int nan, double) {
  return *desc = mode, mode == 1 && nan == 1 ? 0 : INVALID;
}

// The first one is not the same each time, the second one wants too much.
Code cudnnGetConvolutionForwardAlgorithm_v7(Dnn *, const Tensor *x, const Tensor *w, const Window *v, const Tensor *y,
                                            int wanted, int *n, Found *found) {
  *n = 0;
  if (Code code = check(x, w, v, y)) return code;
  if (getenv("EMULATOR_NO_ALGORITHM")) return 3000;
  if (wanted < 3) return INVALID;
  found[0] = {0, 0, 1.0f, 0, 0, v->math, {}};
  found[1] = {2, 0, 1.0f, size_t(1) << 40, 1, v->math, {}};
  found[2] = {1, 0, 1.0f, WORKSPACE, 1, v->math, {}};
  return *n = 3, 0;
}

Code cudnnConvolutionForward(Dnn *dnn, const float *alpha, const Tensor *x, Address x_at, const Tensor *w, Address w_at,
                             const Window *v, int algorithm, Address workspace, size_t n_workspace, const float *beta,
                             const Tensor *y, Address y_at) {
  if (*alpha != 1 || *beta != 0) return INVALID;
  int type = y->type;
  return convolve(dnn, *x, x_at, *w, w_at, *v, algorithm, workspace, n_workspace, *y,
                  [=](int64_t at, int, float sum) { store(y_at, type, at, sum); });
}

Code cudnnConvolutionBiasActivationForward(Dnn *dnn, const float *alpha, const Tensor *x, Address x_at, const Tensor *w,
                                           Address w_at, const Window *v, int algorithm, Address workspace,
                                           size_t n_workspace, const float *factor, const Tensor *z, Address z_at,
                                           const Tensor *bias, Address bias_at, const int *activation, const Tensor *y,
                                           Address y_at) {
  bool fits = bias->n == 1 && bias->c == y->c && bias->h == 1 && bias->w == 1 && z->c == y->c && *activation == 1;
  if (*alpha != 1 || !fits || !bias_at || !z_at) return INVALID;
  int type = y->type;
  float scale = *factor;
  return convolve(dnn, *x, x_at, *w, w_at, *v, algorithm, workspace, n_workspace, *y, [=](int64_t at, int k, float sum) {
    if (scale != 0) sum += scale * load(z_at, type, at);
    sum += load(bias_at, type, k);
    // Comparisons are such that what is not a number stays so.
    store(y_at, type, at, sum < 0 ? 0 : sum);
  });
}

}
