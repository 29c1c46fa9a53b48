// The functions of cuBLASLt that the plugin calls, on the emulator's streams: products of matrices stored by columns, with
// sums in f32, and inputs rounded as the compute type says. It refuses what the library's rules refuse of what is checked
// here: sizes of attributes, leading dimensions, a bias without its epilogue. EMULATOR_NO_ALGORITHM finds none;
// EMULATOR_COUNT says in the end how many products there were.

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

typedef int Code;
typedef void *Handle;
typedef uint64_t Address;

// In cuda.cpp.
void enqueue(Handle stream, std::function<void()> what);

namespace {

const Code INVALID = 7;

struct Desc {
  uint64_t magic;
  int compute, turn_a, turn_b;
  uint32_t epilogue;
  uint64_t bias;
};
const uint64_t MAGIC = 0x6c74646573630001;

struct Layout {
  int type;
  uint64_t rows, cols;
  int64_t ld, offset;
  int32_t count;
};

struct Found {
  uint64_t algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

float half(uint16_t bits) {
  _Float16 value;
  memcpy(&value, &bits, 2);
  return (float)value;
}

float load(const void *at, int type, uint64_t i) {
  return type == 2 ? half(((const uint16_t *)at)[i]) : ((const float *)at)[i];
}

void store(void *at, int type, uint64_t i, float value) {
  if (type == 2) {
    _Float16 narrow = (_Float16)value;
    memcpy((uint16_t *)at + i, &narrow, 2);
  } else {
    ((float *)at)[i] = value;
  }
}

// To so many bits of mantissa, ties to even.
float rounded(float value, int kept) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7f800000) == 0x7f800000) return value;
  uint32_t half = 1u << (22 - kept), odd = (bits >> (23 - kept)) & 1;
  bits = (bits + half - 1 + odd) & ~((1u << (23 - kept)) - 1);
  memcpy(&value, &bits, 4);
  return value;
}

float input(float value, int compute) {
  switch (compute) {
    case 74: return (float)(_Float16)value;
    case 75: return rounded(value, 7);
    case 77: return rounded(value, 10);
    default: return value;
  }
}

}  // namespace

extern "C" {

Code cublasLtCreate(Handle *handle) { return *handle = malloc(1), 0; }
Code cublasLtDestroy(Handle handle) { return free(handle), 0; }

Code cublasLtMatmulDescInit_internal(Desc *desc, size_t size, int compute, int scale) {
  if (size < sizeof(Desc)) return 3;
  if (scale != 0 || (compute != 68 && compute != 74 && compute != 75 && compute != 77)) return INVALID;
  memset(desc, 0, size);
  *desc = {MAGIC, compute, 0, 0, 1, 0};
  return 0;
}

Code cublasLtMatmulDescSetAttribute(Desc *desc, int attribute, const void *value, size_t size) {
  if (desc->magic != MAGIC) return INVALID;
  auto set = [&](void *to, size_t wanted) { return size == wanted ? (memcpy(to, value, size), 0) : INVALID; };
  switch (attribute) {
    case 3: return set(&desc->turn_a, 4);
    case 4: return set(&desc->turn_b, 4);
    case 7: return set(&desc->epilogue, 4);
    case 8: return set(&desc->bias, 8);
    default: return INVALID;
  }
}

Code cublasLtMatrixLayoutCreate(Layout **layout, int type, uint64_t rows, uint64_t cols, int64_t ld) {
  if ((type != 0 && type != 2) || ld < (int64_t)rows || !rows || !cols) return INVALID;
  *layout = new Layout{type, rows, cols, ld, 0, 1};
  return 0;
}
Code cublasLtMatrixLayoutDestroy(Layout *layout) { return delete layout, 0; }
Code cublasLtMatrixLayoutSetAttribute(Layout *layout, int attribute, const void *value, size_t size) {
  auto set = [&](void *to, size_t wanted) { return size == wanted ? (memcpy(to, value, size), 0) : INVALID; };
  switch (attribute) {
    case 5: return set(&layout->count, 4);
    case 6: return set(&layout->offset, 8);
    default: return INVALID;
  }
}

Code cublasLtMatmulPreferenceCreate(uint64_t **preference) { return *preference = new uint64_t(0), 0; }
Code cublasLtMatmulPreferenceDestroy(uint64_t *preference) { return delete preference, 0; }
Code cublasLtMatmulPreferenceSetAttribute(uint64_t *preference, int attribute, const void *value, size_t size) {
  return attribute == 1 && size == 8 ? (memcpy(preference, value, 8), 0) : INVALID;
}

static Code check(const Desc *desc, const Layout *a, const Layout *b, const Layout *c, const Layout *d) {
  if (desc->magic != MAGIC || (desc->epilogue != 1 && desc->epilogue != 4)) return INVALID;
  uint64_t m = desc->turn_a ? a->cols : a->rows, k = desc->turn_a ? a->rows : a->cols;
  uint64_t n = desc->turn_b ? b->rows : b->cols, k_of_b = desc->turn_b ? b->cols : b->rows;
  if (k != k_of_b || d->rows != m || d->cols != n || c->rows != m || c->cols != n || c->type != d->type) return INVALID;
  if (a->type != b->type || a->count != b->count || a->count != d->count) return INVALID;
  return 0;
}

Code cublasLtMatmulAlgoGetHeuristic(Handle, const Desc *desc, const Layout *a, const Layout *b, const Layout *c,
                                    const Layout *d, const uint64_t *preference, int wanted, Found *found, int *n) {
  *n = 0;
  if (Code code = check(desc, a, b, c, d)) return code;
  if (wanted < 1 || *preference < 4096) return INVALID;
  if (getenv("EMULATOR_NO_ALGORITHM")) return 15;
  memset(found, 0, sizeof *found);
  found->algorithm[0] = MAGIC;
  found->workspace = 4096;
  return *n = 1, 0;
}

Code cublasLtMatmul(Handle, const Desc *desc, const float *alpha, Address a_at, const Layout *a, Address b_at,
                    const Layout *b, const float *beta, Address c_at, const Layout *c, Address d_at, const Layout *d,
                    const uint64_t *algorithm, Address workspace, size_t n_workspace, Handle stream) {
  if (Code code = check(desc, a, b, c, d)) return code;
  if (algorithm[0] != MAGIC || n_workspace < 4096 || !workspace) return INVALID;
  if (desc->epilogue == 4 && !desc->bias) return INVALID;
  static std::atomic<int> count(0);
  if (getenv("EMULATOR_COUNT") && count++ == 0) atexit([] { fprintf(stderr, "emulator: %d products\n", count.load()); });
  Desc own = *desc;
  Layout la = *a, lb = *b, lc = *c, ld = *d;
  float scale = *alpha, keep = *beta;
  enqueue(stream, [=] {
    // What is there is anything.
    memset((void *)workspace, 0xAB, 4096);
    uint64_t m = ld.rows, n = ld.cols, k = own.turn_a ? la.rows : la.cols;
    std::vector<float> left(m * k), right(k * n);
    for (int32_t e = 0; e < ld.count; e++) {
      for (uint64_t i = 0; i < m; i++)
        for (uint64_t p = 0; p < k; p++) {
          uint64_t at = (own.turn_a ? p + i * la.ld : i + p * la.ld) + e * la.offset;
          left[i * k + p] = input(load((void *)a_at, la.type, at), own.compute);
        }
      for (uint64_t j = 0; j < n; j++)
        for (uint64_t p = 0; p < k; p++) {
          uint64_t at = (own.turn_b ? j + p * lb.ld : p + j * lb.ld) + e * lb.offset;
          right[j * k + p] = input(load((void *)b_at, lb.type, at), own.compute);
        }
      for (uint64_t j = 0; j < n; j++)
        for (uint64_t i = 0; i < m; i++) {
          float sum = 0;
          for (uint64_t p = 0; p < k; p++) sum += left[i * k + p] * right[j * k + p];
          sum *= scale;
          uint64_t at = i + j * ld.ld + e * ld.offset;
          if (keep != 0) sum += keep * load((void *)c_at, lc.type, i + j * lc.ld + e * lc.offset);
          if (own.epilogue == 4) sum += load((void *)own.bias, ld.type, i);
          store((void *)d_at, ld.type, at, sum);
        }
    }
  });
  return 0;
}

}
