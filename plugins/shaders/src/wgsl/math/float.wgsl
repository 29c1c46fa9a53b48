// The prelude's functions of floats, in the order in which texts have them. NaN passes by a look at its bits: a driver may
// take it that comparisons never see one.

fn pick_f(c: bool, yes: f32, no: f32) -> f32 { return select(no, yes, c); }

fn pick_t(c: bool, yes: bool, no: bool) -> bool { return select(no, yes, c); }

// Not constants: a compiler may refuse them, or take it that they do not occur.
fn inf_f() -> f32 { var bits = 0x7f800000u; return bitcast<f32>(bits); }

fn nan_f() -> f32 { var bits = 0x7fc00000u; return bitcast<f32>(bits); }

fn isnan_f(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }

fn isinf_f(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }

fn smaller_f(a: f32, b: f32) -> f32 {
  if (isnan_f(a)) { return a; }
  if (isnan_f(b)) { return b; }
  return select(b, a, a < b);
}

fn larger_f(a: f32, b: f32) -> f32 {
  if (isnan_f(a)) { return a; }
  if (isnan_f(b)) { return b; }
  return select(b, a, a > b);
}

// Limits: a zero keeps its sign, and NaN stays NaN. By comparisons alone a driver may make a minimum of them, which
// loses it (NVIDIA's for Vulkan does).
fn at_least_f(a: f32, least: f32) -> f32 {
  if (isnan_f(a)) { return a; }
  return select(a, least, a < least);
}

fn at_most_f(a: f32, most: f32) -> f32 {
  if (isnan_f(a)) { return a; }
  return select(a, most, a > most);
}

// Rounded as IEEE 754 has it. WGSL allows 2.5 units in the last place, and anything for divisors above 2^126, where
// drivers give 0. The quotient of the significands has two bits more than are kept: the device's own is near enough to
// be put right by what it leaves, which wraps to the right integer.
fn div_f(a: f32, b: f32) -> f32 {
  let sign = (bitcast<u32>(a) ^ bitcast<u32>(b)) & 0x80000000u;
  let xa = bitcast<u32>(a) & 0x7fffffffu;
  let xb = bitcast<u32>(b) & 0x7fffffffu;
  if (xa > 0x7f800000u || xb > 0x7f800000u || (xa == xb && (xa == 0u || xa == 0x7f800000u))) { return nan_f(); }
  if (xa == 0u || xb == 0x7f800000u) { return bitcast<f32>(sign); }
  if (xb == 0u || xa == 0x7f800000u) { return bitcast<f32>(sign | 0x7f800000u); }
  let low_a = select(0u, countLeadingZeros(xa) - 8u, xa < 0x800000u);
  let low_b = select(0u, countLeadingZeros(xb) - 8u, xb < 0x800000u);
  let ma = select((xa & 0x7fffffu) | 0x800000u, xa << low_a, xa < 0x800000u);
  let mb = select((xb & 0x7fffffu) | 0x800000u, xb << low_b, xb < 0x800000u);
  let of_a = max(i32(xa >> 23u), 1) - i32(low_a);
  let of_b = max(i32(xb >> 23u), 1) - i32(low_b);
  var q = u32(f32(ma) / f32(mb) * 33554432.0);
  var left = i32((ma << 25u) - q * mb);
  let more = i32(floor(f32(left) / f32(mb)));
  q += u32(more);
  left -= more * i32(mb);
  if (left < 0) { q -= 1u; left += i32(mb); }
  if (left >= i32(mb)) { q += 1u; left -= i32(mb); }
  q = (q << 1u) | select(0u, 1u, left != 0);
  let is_long = q >= 0x4000000u;
  var exponent = of_a - of_b + select(126, 127, is_long);
  if (exponent > 254) { return bitcast<f32>(sign | 0x7f800000u); }
  var drop = select(2u, 3u, is_long);
  if (exponent < 1) { drop = min(drop + u32(1 - exponent), 31u); exponent = 1; }
  let rest = q & ((1u << drop) - 1u);
  let half = 1u << (drop - 1u);
  var kept = q >> drop;
  kept += select(0u, 1u, rest > half || (rest == half && (kept & 1u) == 1u));
  // A carry goes into the exponent; without the leading one it is that of subnormal numbers.
  return bitcast<f32>(sign | ((u32(exponent - 1) << 23u) + kept));
}

// The remainder of truncated division, exact: digits are taken off one by one, as in musl's fmodf.
fn rem_f(x: f32, y: f32) -> f32 {
  let ux = bitcast<u32>(x);
  let ax = ux & 0x7fffffffu;
  let ay = bitcast<u32>(y) & 0x7fffffffu;
  if (ay == 0u || ax >= 0x7f800000u || ay > 0x7f800000u) { return nan_f(); }
  if (ax < ay) { return x; }
  var ex = max(ax >> 23u, 1u);
  let ey = max(ay >> 23u, 1u);
  var mx = select(ax & 0x7fffffu, (ax & 0x7fffffu) | 0x800000u, (ax >> 23u) > 0u);
  let my = select(ay & 0x7fffffu, (ay & 0x7fffffu) | 0x800000u, (ay >> 23u) > 0u);
  loop {
    if (mx >= my) { mx = mx - my; }
    if (ex <= ey || mx == 0u) { break; }
    mx = mx << 1u;
    ex = ex - 1u;
  }
  if (mx == 0u) { return bitcast<f32>(ux & 0x80000000u); }
  loop {
    if (mx >= 0x800000u || ex <= 1u) { break; }
    mx = mx << 1u;
    ex = ex - 1u;
  }
  let exponent = select(0u, ex, mx >= 0x800000u);
  return bitcast<f32>((ux & 0x80000000u) | (exponent << 23u) | (mx & 0x7fffffu));
}

fn neg_f(a: f32) -> f32 { return bitcast<f32>(bitcast<u32>(a) ^ 0x80000000u); }

fn abs_f(a: f32) -> f32 { return bitcast<f32>(bitcast<u32>(a) & 0x7fffffffu); }

fn copysign_f(a: f32, s: f32) -> f32 {
  return bitcast<f32>((bitcast<u32>(a) & 0x7fffffffu) | (bitcast<u32>(s) & 0x80000000u));
}

fn sign_f(a: f32) -> f32 {
  if (isnan_f(a)) { return a; }
  return select(select(a, -1.0, a < 0.0), 1.0, a > 0.0);
}

fn sqrt_f(a: f32) -> f32 {
  if (a < 0.0) { return nan_f(); }
  if (isnan_f(a) || isinf_f(a)) { return a; }
  return sqrt(a);
}

fn floor_f(a: f32) -> f32 { return select(a, floor(a), abs(a) < 8388608.0); }

fn ceil_f(a: f32) -> f32 { return select(a, ceil(a), abs(a) < 8388608.0); }

fn round_f(a: f32) -> f32 { return select(a, round(a), abs(a) < 8388608.0); }

// Limited to 0..1.
fn unit_f(a: f32) -> f32 { return at_least_f(at_most_f(a, 1.0), 0.0); }

fn exp_f(arg: f32) -> f32 {
  if (isnan_f(arg)) { return arg; }
  if (arg > 88.8) { return inf_f(); }
  let x = max(arg, -104.0);
  let n = round(x * 1.44269504);
  let k = i32(n);
  var r = fma(n, -0.6933594, x);
  r = fma(n, 2.1219444e-4, r);
  var q = fma(r, 0.001381454, 0.008368745);
  q = fma(q, r, 0.041668390);
  q = fma(q, r, 0.166665210);
  q = fma(q, r, 0.499999940);
  let y = fma(r * r, q, r) + 1.0;
  let half = k >> 1u;
  return y * bitcast<f32>(u32(half + 127) << 23u) * bitcast<f32>(u32(k - half + 127) << 23u);
}

fn expm1_f(x: f32) -> f32 {
  var c = fma(x, 1.0 / 720.0, 1.0 / 120.0);
  c = fma(c, x, 1.0 / 24.0);
  c = fma(c, x, 1.0 / 6.0);
  c = fma(c, x, 0.5);
  return select(exp_f(x) - 1.0, fma(c * x, x, x), abs(x) < 0.25);
}

fn log_f(x: f32) -> f32 {
  if (isnan_f(x) || x < 0.0) { return nan_f(); }
  if (isinf_f(x)) { return x; }
  if (x == 0.0) { return -inf_f(); }
  let subnormal = x < 1.17549435e-38;
  let scaled = select(x, x * 8388608.0, subnormal);
  let bits = bitcast<i32>(scaled);
  let k = (bits - 0x3f3504f3) >> 23u;
  let m = bitcast<f32>(bits - (k << 23u));
  let kf = f32(k) - select(0.0, 23.0, subnormal);
  let f = m - 1.0;
  var q = fma(f, 0.06746652, -0.11675671);
  q = fma(q, f, 0.11888167);
  q = fma(q, f, -0.12405586);
  q = fma(q, f, 0.14219551);
  q = fma(q, f, -0.16667996);
  q = fma(q, f, 0.20002120);
  q = fma(q, f, -0.25000010);
  q = fma(q, f, 0.33333313);
  let square = f * f;
  var tail = fma(square * f, q, kf * -2.1219444e-4);
  tail = fma(-0.5, square, tail);
  return fma(kf, 0.6933594, f + tail);
}

// What rounding takes from 1 + x is given back.
fn log1p_f(x: f32) -> f32 {
  let u = 1.0 + x;
  if (u == 1.0 || isinf_f(x)) { return x; }
  return log_f(u) * (x / (u - 1.0));
}

fn sigmoid_f(x: f32) -> f32 {
  if (isnan_f(x)) { return x; }
  let e = exp_f(-abs(x));
  return select(1.0, e, x < 0.0) / (1.0 + e);
}

fn tanh_f(x: f32) -> f32 {
  if (isnan_f(x)) { return x; }
  let a = abs(x);
  let z = x * x;
  var q = fma(z, -0.005704987, 0.020639088);
  q = fma(q, z, -0.053739715);
  q = fma(q, z, 0.13331442);
  q = fma(q, z, -0.3333328);
  let small = fma(x * z, q, x);
  let large = 1.0 - 2.0 / (exp_f(min(a + a, 80.0)) + 1.0);
  return copysign_f(select(large, small, a < 0.625), x);
}

fn erf_f(x: f32) -> f32 {
  if (isnan_f(x)) { return x; }
  let a = abs(x);
  let z = x * x;
  var q = fma(z, 8.267462e-5, -0.0008118075);
  q = fma(q, z, 0.00519883);
  q = fma(q, z, -0.026858497);
  q = fma(q, z, 0.11283679);
  q = fma(q, z, -0.37612632);
  q = fma(q, z, 0.12837917);
  let small = fma(x, q, x);
  let t = min(a, 4.0);
  var r = fma(t, -0.00021398495, 0.0032149556);
  r = fma(r, t, -0.022889964);
  r = fma(r, t, 0.10526184);
  r = fma(r, t, 0.6357183);
  r = fma(r, t, 0.12851436);
  let large = 1.0 - exp_f(-fma(t, r, t));
  return copysign_f(select(large, small, a < 0.9375), x);
}

fn softplus_f(x: f32) -> f32 {
  if (isnan_f(x)) { return x; }
  let e = exp_f(-abs(x));
  return select(x, 0.0, x < 0.0) + log1p_f(e);
}

fn pow_f(x: f32, y: f32) -> f32 {
  if (y == 0.0 || x == 1.0) { return 1.0; }
  if (isnan_f(x) || isnan_f(y)) { return nan_f(); }
  if (y == 1.0) { return x; }
  if (y == 2.0) { return x * x; }
  if (y == 3.0) { return x * x * x; }
  if (y == 0.5 && x >= 0.0) { return sqrt_f(x); }
  if (y == -1.0) { return 1.0 / x; }
  let a = abs(x);
  // From 2^24 on every float is even.
  let is_whole = floor_f(y) == y;
  let is_odd = is_whole && abs(y) < 16777216.0 && (i32(y) & 1) == 1;
  if (x < 0.0 && !is_whole && !isinf_f(x)) { return nan_f(); }
  var r = 0.0;
  if (isinf_f(y)) {
    if (a == 1.0) { return 1.0; }
    r = select(0.0, inf_f(), (a > 1.0) == (y > 0.0));
  } else if (a == 0.0 || isinf_f(a)) {
    r = select(0.0, inf_f(), (a == 0.0) == (y < 0.0));
  } else {
    r = exp_f(y * log_f(a));
  }
  return select(r, -r, is_odd && (bitcast<u32>(x) >> 31u) == 1u);
}

// The nearest multiple of pi / 2, in three parts, is taken off: exact enough up to some thousands of turns.
fn quadrant_f(x: f32) -> vec2<f32> {
  let n = round(x * 0.63661977);
  var r = fma(n, -1.5703125, x);
  r = fma(n, -4.837513e-4, r);
  r = fma(n, -7.54979e-8, r);
  return vec2<f32>(r, n);
}

fn sincos_f(r: f32, quadrant: i32) -> f32 {
  let z = r * r;
  var s = fma(z, -1.9515296e-4, 0.008332161);
  s = fma(s, z, -0.16666655);
  let sine = fma(s * z, r, r);
  var c = fma(z, 2.4433157e-5, -0.0013887316);
  c = fma(c, z, 0.041666646);
  let cosine = fma(c * z, z, fma(-0.5, z, 1.0));
  let value = select(sine, cosine, (quadrant & 1) == 1);
  return select(value, -value, (quadrant & 2) == 2);
}

fn sin_f(x: f32) -> f32 {
  if (isnan_f(x) || isinf_f(x)) { return nan_f(); }
  if (abs(x) > 1e5) { return sin(x); }
  let q = quadrant_f(x);
  return sincos_f(q.x, i32(q.y));
}

fn cos_f(x: f32) -> f32 {
  if (isnan_f(x) || isinf_f(x)) { return nan_f(); }
  if (abs(x) > 1e5) { return cos(x); }
  let q = quadrant_f(x);
  return sincos_f(q.x, i32(q.y) + 1);
}

fn tan_f(x: f32) -> f32 { return sin_f(x) / cos_f(x); }

fn atan_f(x: f32) -> f32 {
  if (isnan_f(x)) { return x; }
  let a = abs(x);
  var base = 0.0;
  var t = a;
  if (a > 2.4142137) {
    base = 1.5707964;
    t = -1.0 / a;
  } else if (a > 0.41421357) {
    base = 0.7853982;
    t = (a - 1.0) / (a + 1.0);
  }
  let z = t * t;
  var q = fma(z, 0.080537446, -0.13877686);
  q = fma(q, z, 0.19977711);
  q = fma(q, z, -0.3333295);
  return copysign_f(base + fma(q * z, t, t), x);
}

fn asin_f(x: f32) -> f32 {
  let a = abs(x);
  if (isnan_f(x) || a > 1.0) { return nan_f(); }
  let z = select(a * a, 0.5 * (1.0 - a), a > 0.5);
  let t = select(a, sqrt(z), a > 0.5);
  var q = fma(z, 0.042163200, 0.024181311);
  q = fma(q, z, 0.045470026);
  q = fma(q, z, 0.074953005);
  q = fma(q, z, 0.16666752);
  let y = fma(q * z, t, t);
  return copysign_f(select(y, 1.5707964 - 2.0 * y, a > 0.5), x);
}

fn acos_f(x: f32) -> f32 { return 1.5707964 - asin_f(x); }

fn sinh_f(x: f32) -> f32 {
  if (isnan_f(x)) { return x; }
  let a = abs(x);
  if (a > 20.0) {
    let h = exp_f(0.5 * a);
    return copysign_f(0.5 * h * h, x);
  }
  let e = expm1_f(a);
  return copysign_f(0.5 * (e + e / (e + 1.0)), x);
}

fn cosh_f(x: f32) -> f32 {
  if (isnan_f(x)) { return x; }
  let h = exp_f(0.5 * abs(x));
  return 0.5 * h * h + 0.5 / h / h;
}

fn asinh_f(x: f32) -> f32 {
  if (isnan_f(x)) { return x; }
  let a = abs(x);
  if (a > 1e4) { return copysign_f(log_f(a) + 0.6931472, x); }
  return copysign_f(log1p_f(a + a * a / (1.0 + sqrt(a * a + 1.0))), x);
}

fn acosh_f(x: f32) -> f32 {
  if (isnan_f(x) || x < 1.0) { return nan_f(); }
  if (x > 1e4) { return log_f(x) + 0.6931472; }
  let t = x - 1.0;
  return log1p_f(t + sqrt(2.0 * t + t * t));
}

fn atanh_f(x: f32) -> f32 {
  let a = abs(x);
  if (isnan_f(x) || a > 1.0) { return nan_f(); }
  if (a == 1.0) { return copysign_f(inf_f(), x); }
  return copysign_f(0.5 * log1p_f(2.0 * a / (1.0 - a)), x);
}
