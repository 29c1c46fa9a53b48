// What WGSL has and CUDA C has not, or has with another meaning: vectors, arrays that are values, integers that wrap,
// division by zero, shifts that are masked, conversions that saturate, 16-bit floats. Needs no header.
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
#define W __device__ __forceinline__

template <class T, int N> struct alignas(sizeof(T) * (N == 3 ? 4 : N)) Vec { T v[N]; };
template <class T, int N> struct Arr { T v[N]; };

// A 16-bit float, by its bits.
struct f16 { unsigned short b; };
W float w_float(f16 a) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(a.b)); return r; }
W f16 w_half(float a) { f16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.b) : "f"(a)); return r; }

// f(a, b) for each component; a scalar goes with every component.
#define LIFT1(f) \
  template <class T, int N> W auto f(Vec<T, N> a) -> Vec<decltype(f(a.v[0])), N> { \
    Vec<decltype(f(a.v[0])), N> r; for (int i = 0; i < N; i++) r.v[i] = f(a.v[i]); return r; }
#define LIFT2(f) \
  template <class T, class U, int N> W auto f(Vec<T, N> a, Vec<U, N> b) -> Vec<decltype(f(a.v[0], b.v[0])), N> { \
    Vec<decltype(f(a.v[0], b.v[0])), N> r; for (int i = 0; i < N; i++) r.v[i] = f(a.v[i], b.v[i]); return r; } \
  template <class T, int N> W auto f(Vec<T, N> a, T b) -> Vec<decltype(f(b, b)), N> { \
    Vec<decltype(f(b, b)), N> r; for (int i = 0; i < N; i++) r.v[i] = f(a.v[i], b); return r; } \
  template <class T, int N> W auto f(T a, Vec<T, N> b) -> Vec<decltype(f(a, a)), N> { \
    Vec<decltype(f(a, a)), N> r; for (int i = 0; i < N; i++) r.v[i] = f(a, b.v[i]); return r; }
#define LIFT3(f) \
  template <class T, class U, class V, int N> \
  W auto f(Vec<T, N> a, Vec<U, N> b, Vec<V, N> c) -> Vec<decltype(f(a.v[0], b.v[0], c.v[0])), N> { \
    Vec<decltype(f(a.v[0], b.v[0], c.v[0])), N> r; \
    for (int i = 0; i < N; i++) r.v[i] = f(a.v[i], b.v[i], c.v[i]); return r; }

template <int N, class T> W Vec<T, N> w_splat(T a) { Vec<T, N> r; for (int i = 0; i < N; i++) r.v[i] = a; return r; }

// Arithmetic: integers wrap.
#define ARITHMETIC(f, op, name) \
  W float f(float a, float b) { return a op b; } \
  W u32 f(u32 a, u32 b) { return a op b; } \
  W u64 f(u64 a, u64 b) { return a op b; } \
  W int f(int a, int b) { return (int)((u32)a op (u32)b); } \
  W i64 f(i64 a, i64 b) { return (i64)((u64)a op (u64)b); } \
  W f16 f(f16 a, f16 b) { f16 r; asm(name ".rn.f16 %0, %1, %2;" : "=h"(r.b) : "h"(a.b), "h"(b.b)); return r; } \
  LIFT2(f)
ARITHMETIC(w_add, +, "add")
ARITHMETIC(w_sub, -, "sub")
ARITHMETIC(w_mul, *, "mul")

// A division that has no result gives the dividend, a remainder of it 0.
W float w_div(float a, float b) { return a / b; }
W f16 w_div(f16 a, f16 b) { return w_half(w_float(a) / w_float(b)); }
W u32 w_div(u32 a, u32 b) { return b == 0u ? a : a / b; }
W u64 w_div(u64 a, u64 b) { return b == 0ull ? a : a / b; }
W int w_div(int a, int b) { return b == 0 || (b == -1 && a == -2147483647 - 1) ? a : a / b; }
W i64 w_div(i64 a, i64 b) { return b == 0 || (b == -1 && a == -9223372036854775807ll - 1) ? a : a / b; }
LIFT2(w_div)
W float w_mod(float a, float b) { return fmodf(a, b); }
W f16 w_mod(f16 a, f16 b) { return w_half(fmodf(w_float(a), w_float(b))); }
W u32 w_mod(u32 a, u32 b) { return b == 0u ? 0u : a % b; }
W u64 w_mod(u64 a, u64 b) { return b == 0ull ? 0ull : a % b; }
W int w_mod(int a, int b) { return b == 0 || b == -1 ? 0 : a % b; }
W i64 w_mod(i64 a, i64 b) { return b == 0 || b == -1 ? 0 : a % b; }
LIFT2(w_mod)

W float w_neg(float a) { return -a; }
W f16 w_neg(f16 a) { a.b ^= 0x8000; return a; }
W int w_neg(int a) { return (int)(0u - (u32)a); }
W i64 w_neg(i64 a) { return (i64)(0ull - (u64)a); }
LIFT1(w_neg)
W bool w_not(bool a) { return !a; }
W int w_not(int a) { return ~a; }
W u32 w_not(u32 a) { return ~a; }
W i64 w_not(i64 a) { return ~a; }
W u64 w_not(u64 a) { return ~a; }
LIFT1(w_not)

#define BITWISE(f, op) \
  W bool f(bool a, bool b) { return a op b; } \
  W int f(int a, int b) { return a op b; } \
  W u32 f(u32 a, u32 b) { return a op b; } \
  W i64 f(i64 a, i64 b) { return a op b; } \
  W u64 f(u64 a, u64 b) { return a op b; } \
  LIFT2(f)
BITWISE(w_and, &)
BITWISE(w_or, |)
BITWISE(w_xor, ^)

// As many bits as the type can be shifted by.
W u32 w_shl(u32 a, u32 b) { return a << (b & 31u); }
W int w_shl(int a, u32 b) { return (int)((u32)a << (b & 31u)); }
W u64 w_shl(u64 a, u32 b) { return a << (b & 63u); }
W i64 w_shl(i64 a, u32 b) { return (i64)((u64)a << (b & 63u)); }
LIFT2(w_shl)
W u32 w_shr(u32 a, u32 b) { return a >> (b & 31u); }
W int w_shr(int a, u32 b) { return a >> (b & 31u); }
W u64 w_shr(u64 a, u32 b) { return a >> (b & 63u); }
W i64 w_shr(i64 a, u32 b) { return a >> (b & 63u); }
LIFT2(w_shr)

#define COMPARISON(f, op) \
  W bool f(bool a, bool b) { return a op b; } \
  W bool f(float a, float b) { return a op b; } \
  W bool f(f16 a, f16 b) { return w_float(a) op w_float(b); } \
  W bool f(int a, int b) { return a op b; } \
  W bool f(u32 a, u32 b) { return a op b; } \
  W bool f(i64 a, i64 b) { return a op b; } \
  W bool f(u64 a, u64 b) { return a op b; } \
  LIFT2(f)
COMPARISON(w_eq, ==)
COMPARISON(w_ne, !=)
COMPARISON(w_lt, <)
COMPARISON(w_le, <=)
COMPARISON(w_gt, >)
COMPARISON(w_ge, >=)

template <class T> W T w_select(bool c, T yes, T no) { return c ? yes : no; }
template <class T, int N> W Vec<T, N> w_select(Vec<bool, N> c, Vec<T, N> yes, Vec<T, N> no) {
  Vec<T, N> r; for (int i = 0; i < N; i++) r.v[i] = c.v[i] ? yes.v[i] : no.v[i]; return r; }
W bool w_all(bool a) { return a; }
W bool w_any(bool a) { return a; }
template <class T> W T w_shuffle_xor(T a, u32 mask) { return __shfl_xor_sync(0xffffffffu, a, mask); }
template <class T, int N> W Vec<T, N> w_shuffle_xor(Vec<T, N> a, u32 mask) {
  Vec<T, N> r; for (int i = 0; i < N; i++) r.v[i] = __shfl_xor_sync(0xffffffffu, a.v[i], mask); return r;
}
template <int N> W bool w_all(Vec<bool, N> a) { bool r = true; for (int i = 0; i < N; i++) r = r && a.v[i]; return r; }
template <int N> W bool w_any(Vec<bool, N> a) { bool r = false; for (int i = 0; i < N; i++) r = r || a.v[i]; return r; }

// Conversions: floats are truncated and limited to what the integer can be.
template <class To> struct Cast;
#define CAST(To, from_float) \
  template <> struct Cast<To> { \
    static W To of(bool a) { return a ? (To)1 : (To)0; } \
    static W To of(float a) { return from_float; } \
    static W To of(f16 h) { float a = w_float(h); return from_float; } \
    static W To of(int a) { return (To)a; } \
    static W To of(u32 a) { return (To)a; } \
    static W To of(i64 a) { return (To)a; } \
    static W To of(u64 a) { return (To)a; } \
  };
CAST(float, a)
CAST(int, __float2int_rz(a))
CAST(u32, __float2uint_rz(a))
CAST(i64, __float2ll_rz(a))
CAST(u64, __float2ull_rz(a))
template <> struct Cast<bool> {
  static W bool of(bool a) { return a; }
  static W bool of(float a) { return a != 0.0f; }
  static W bool of(f16 a) { return (a.b & 0x7fff) != 0; }
  static W bool of(int a) { return a != 0; }
  static W bool of(u32 a) { return a != 0u; }
  static W bool of(i64 a) { return a != 0; }
  static W bool of(u64 a) { return a != 0; }
};
template <> struct Cast<f16> {
  static W f16 of(f16 a) { return a; }
  template <class From> static W f16 of(From a) { return w_half(Cast<float>::of(a)); }
};
template <class To, int N> struct Cast<Vec<To, N> > {
  template <class From> static W Vec<To, N> of(Vec<From, N> a) {
    Vec<To, N> r; for (int i = 0; i < N; i++) r.v[i] = Cast<To>::of(a.v[i]); return r; }
};
template <class To, class From> W To w_bits(From a) {
  static_assert(sizeof(To) == sizeof(From), "a bitcast between sizes");
  union { From from; To to; } u; u.from = a; return u.to;
}

// Functions of a float, and of a 16-bit one by way of it.
#define FLOAT1(f, expression) \
  W float f(float a) { return expression; } \
  W f16 f(f16 a) { return w_half(f(w_float(a))); } \
  LIFT1(f)
#define FLOAT2(f, expression) \
  W float f(float a, float b) { return expression; } \
  W f16 f(f16 a, f16 b) { return w_half(f(w_float(a), w_float(b))); } \
  LIFT2(f)
#define FLOAT3(f, expression) \
  W float f(float a, float b, float c) { return expression; } \
  W f16 f(f16 a, f16 b, f16 c) { return w_half(f(w_float(a), w_float(b), w_float(c))); } \
  LIFT3(f)
FLOAT1(w_floor, floorf(a))
FLOAT1(w_ceil, ceilf(a))
FLOAT1(w_round, rintf(a))
FLOAT1(w_trunc, truncf(a))
FLOAT1(w_fract, a - floorf(a))
FLOAT1(w_sqrt, sqrtf(a))
FLOAT1(w_inverse_sqrt, 1.0f / sqrtf(a))
FLOAT1(w_exp, expf(a))
FLOAT1(w_exp2, exp2f(a))
FLOAT1(w_log, logf(a))
FLOAT1(w_log2, log2f(a))
FLOAT1(w_sin, sinf(a))
FLOAT1(w_cos, cosf(a))
FLOAT1(w_tan, tanf(a))
FLOAT1(w_asin, asinf(a))
FLOAT1(w_acos, acosf(a))
FLOAT1(w_atan, atanf(a))
FLOAT1(w_sinh, sinhf(a))
FLOAT1(w_cosh, coshf(a))
FLOAT1(w_tanh, tanhf(a))
FLOAT1(w_asinh, asinhf(a))
FLOAT1(w_acosh, acoshf(a))
FLOAT1(w_atanh, atanhf(a))
FLOAT1(w_saturate, fminf(fmaxf(a, 0.0f), 1.0f))
FLOAT1(w_radians, a * 0.017453292519943295f)
FLOAT1(w_degrees, a * 57.29577951308232f)
FLOAT1(w_quantize_to_f16, w_float(w_half(a)))
FLOAT2(w_pow, powf(a, b))
FLOAT2(w_atan2, atan2f(a, b))
FLOAT2(w_step, a <= b ? 1.0f : 0.0f)
FLOAT3(w_mix, a * (1.0f - c) + b * c)
template <class T, int N> W Vec<T, N> w_mix(Vec<T, N> a, Vec<T, N> b, T c) { return w_mix(a, b, w_splat<N>(c)); }
W float w_fma(float a, float b, float c) { return fmaf(a, b, c); }
W f16 w_fma(f16 a, f16 b, f16 c) {
  f16 r; asm("fma.rn.f16 %0, %1, %2, %3;" : "=h"(r.b) : "h"(a.b), "h"(b.b), "h"(c.b)); return r; }
LIFT3(w_fma)

W float w_abs(float a) { return fabsf(a); }
W f16 w_abs(f16 a) { a.b &= 0x7fff; return a; }
W int w_abs(int a) { return a < 0 ? w_neg(a) : a; }
W i64 w_abs(i64 a) { return a < 0 ? w_neg(a) : a; }
W u32 w_abs(u32 a) { return a; }
W u64 w_abs(u64 a) { return a; }
LIFT1(w_abs)
W float w_sign(float a) { return a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : a; }
W f16 w_sign(f16 a) { return w_half(w_sign(w_float(a))); }
W int w_sign(int a) { return (a > 0) - (a < 0); }
W i64 w_sign(i64 a) { return (a > 0) - (a < 0); }
LIFT1(w_sign)
#define EXTREME(f, of_float, op) \
  W float f(float a, float b) { return of_float(a, b); } \
  W f16 f(f16 a, f16 b) { return w_half(of_float(w_float(a), w_float(b))); } \
  W int f(int a, int b) { return a op b ? a : b; } \
  W u32 f(u32 a, u32 b) { return a op b ? a : b; } \
  W i64 f(i64 a, i64 b) { return a op b ? a : b; } \
  W u64 f(u64 a, u64 b) { return a op b ? a : b; } \
  LIFT2(f)
EXTREME(w_min, fminf, <)
EXTREME(w_max, fmaxf, >)
template <class T> W T w_clamp(T a, T low, T high) { return w_min(w_max(a, low), high); }
template <class T, int N> W T w_dot(Vec<T, N> a, Vec<T, N> b) {
  T r = w_mul(a.v[0], b.v[0]); for (int i = 1; i < N; i++) r = w_add(r, w_mul(a.v[i], b.v[i])); return r; }
template <class T, int N> W T w_length(Vec<T, N> a) { return w_sqrt(w_dot(a, a)); }

// Bits.
W u32 w_count_one_bits(u32 a) { return (u32)__popc(a); }
W u32 w_reverse_bits(u32 a) { return __brev(a); }
W u32 w_count_leading_zeros(u32 a) { return (u32)__clz((int)a); }
W u32 w_count_trailing_zeros(u32 a) { return a == 0u ? 32u : (u32)__ffs((int)a) - 1u; }
W u32 w_first_leading_bit(u32 a) { return 31u - (u32)__clz((int)a); }
W u32 w_first_trailing_bit(u32 a) { return (u32)__ffs((int)a) - 1u; }
W int w_count_one_bits(int a) { return __popc((u32)a); }
W int w_reverse_bits(int a) { return (int)__brev((u32)a); }
W int w_count_leading_zeros(int a) { return __clz(a); }
W int w_count_trailing_zeros(int a) { return (int)w_count_trailing_zeros((u32)a); }
W int w_first_leading_bit(int a) { return 31 - __clz(a < 0 ? ~a : a); }
W int w_first_trailing_bit(int a) { return __ffs(a) - 1; }
LIFT1(w_count_one_bits)
LIFT1(w_reverse_bits)
LIFT1(w_count_leading_zeros)
LIFT1(w_count_trailing_zeros)
LIFT1(w_first_leading_bit)
LIFT1(w_first_trailing_bit)
W u32 w_extract_bits(u32 a, u32 offset, u32 count) {
  u32 o = offset < 32u ? offset : 32u, c = count < 32u - o ? count : 32u - o;
  return c == 0u ? 0u : (a << (32u - o - c)) >> (32u - c);
}
W int w_extract_bits(int a, u32 offset, u32 count) {
  u32 o = offset < 32u ? offset : 32u, c = count < 32u - o ? count : 32u - o;
  return c == 0u ? 0 : (int)((u32)a << (32u - o - c)) >> (32u - c);
}
W u32 w_insert_bits(u32 a, u32 b, u32 offset, u32 count) {
  u32 o = offset < 32u ? offset : 32u, c = count < 32u - o ? count : 32u - o;
  if (c == 0u) return a;
  u32 mask = (0xffffffffu >> (32u - c)) << o;
  return (a & ~mask) | ((b << o) & mask);
}
W int w_insert_bits(int a, int b, u32 offset, u32 count) { return (int)w_insert_bits((u32)a, (u32)b, offset, count); }

// Packing, the first component lowest.
W u32 w_pack2x16float(Vec<float, 2> a) { return (u32)w_half(a.v[0]).b | (u32)w_half(a.v[1]).b << 16; }
W Vec<float, 2> w_unpack2x16float(u32 a) {
  f16 low = {(unsigned short)(a & 0xffffu)}, high = {(unsigned short)(a >> 16)};
  return {{w_float(low), w_float(high)}};
}
template <class T> W u32 w_pack4x8(Vec<T, 4> a) {
  u32 r = 0u; for (int i = 0; i < 4; i++) r |= ((u32)a.v[i] & 0xffu) << (8 * i); return r; }
template <class T> W u32 w_pack4x8_clamp(Vec<T, 4> a, T low, T high) {
  u32 r = 0u; for (int i = 0; i < 4; i++) r |= ((u32)w_clamp(a.v[i], low, high) & 0xffu) << (8 * i); return r; }
W Vec<u32, 4> w_unpack4xu8(u32 a) { return {{a & 0xffu, a >> 8 & 0xffu, a >> 16 & 0xffu, a >> 24}}; }
W Vec<int, 4> w_unpack4xi8(u32 a) {
  return {{(int)(a << 24) >> 24, (int)(a << 16) >> 24, (int)(a << 8) >> 24, (int)a >> 24}}; }
W int w_dot4_i8(u32 a, u32 b) { return __dp4a((int)a, (int)b, 0); }
W u32 w_dot4_u8(u32 a, u32 b) { return __dp4a(a, b, 0u); }
