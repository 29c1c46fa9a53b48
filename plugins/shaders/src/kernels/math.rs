//! The prelude of the formulas in WGSL, and elementary functions for other kernels.
//!
//! WGSL promises little of its own functions: an error that grows with the argument for `exp`, 2^-11 for `sin`, nothing
//! at NaN and infinity. These reduce the argument and evaluate a polynomial. `exp_f`, `log_f`, `tanh_f` and `erf_f` are
//! those of the CPU plugin's `math.rs`, where their fits and errors stand; the trigonometric ones have the coefficients
//! of Cephes' single-precision functions (Moshier, 1992). NaN passes by a look at its bits: a driver may take it that comparisons
//! never see one.
//!
//! A name ends in the letter of its type ([`crate::formulas::Class::letter`]); [`functions`] brings what they call.

/// WGSL of the functions that are named, and of those that they call, each once.
pub fn functions<S: AsRef<str>>(names: &[S]) -> String {
    let mut wanted: Vec<&str> = Vec::new();
    let mut open: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    while let Some(name) = open.pop() {
        let Some((name, text)) = find(name) else { continue };
        if wanted.contains(&name) {
            continue;
        }
        wanted.push(name);
        open.extend(ALL.iter().map(|(other, _)| *other).filter(|&other| other != name && calls(text, other)));
    }
    // In the table's order, so that equal sets give equal texts.
    let texts = ALL.iter().filter(|(name, _)| wanted.contains(name)).map(|(_, text)| *text);
    texts.collect::<Vec<_>>().join("\n")
}

/// Turns of loops of a call, at most, of functions whose text this is.
pub fn turns(functions: &str) -> u64 {
    // Those of a float's remainder: bits of exponents and fractions.
    if functions.contains("fn rem_f") { 300 } else { 0 }
}

/// WGSL of the functions that a text calls, and of those that they call.
pub fn called_by(text: &str) -> String {
    let names: Vec<&str> = ALL.iter().map(|(name, _)| *name).filter(|name| calls(text, name)).collect();
    functions(&names)
}

/// Whether there is a function of that name.
#[cfg(test)]
pub fn has(name: &str) -> bool {
    find(name).is_some()
}

fn find(name: &str) -> Option<(&'static str, &'static str)> {
    ALL.iter().find(|(known, _)| *known == name).copied()
}

fn calls(text: &str, name: &str) -> bool {
    let call = format!("{name}(");
    text.match_indices(&call).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        !before.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

macro_rules! for_each_integer {
    ($(($letter:literal, $type:literal))*) => {
        &[$(
            (concat!("pick_", $letter), concat!("fn pick_", $letter, "(c: bool, yes: ", $type, ", no: ", $type, ") -> ", $type, " { return select(no, yes, c); }")),
            (concat!("smaller_", $letter), concat!("fn smaller_", $letter, "(a: ", $type, ", b: ", $type, ") -> ", $type, " { return min(a, b); }")),
            (concat!("at_least_", $letter), concat!("fn at_least_", $letter, "(a: ", $type, ", least: ", $type, ") -> ", $type, " { return max(a, least); }")),
            (concat!("at_most_", $letter), concat!("fn at_most_", $letter, "(a: ", $type, ", most: ", $type, ") -> ", $type, " { return min(a, most); }")),
            (concat!("larger_", $letter), concat!("fn larger_", $letter, "(a: ", $type, ", b: ", $type, ") -> ", $type, " { return max(a, b); }")),
            // Division by 0 gives 0, and leaves 0.
            (concat!("div_", $letter), concat!("fn div_", $letter, "(a: ", $type, ", b: ", $type, ") -> ", $type, " {\n  let zero = ", $type, "(0);\n  if (b == zero) { return zero; }\n  return a / b;\n}")),
            (concat!("rem_", $letter), concat!("fn rem_", $letter, "(a: ", $type, ", b: ", $type, ") -> ", $type, " {\n  let zero = ", $type, "(0);\n  if (b == zero) { return zero; }\n  return a - (a / b) * b;\n}")),
            // The remainder has the divisor's sign.
            (concat!("mod_", $letter), concat!("fn mod_", $letter, "(a: ", $type, ", b: ", $type, ") -> ", $type, " {\n  let zero = ", $type, "(0);\n  let r = rem_", $letter, "(a, b);\n  if (r != zero && ((r < zero) != (b < zero))) { return r + b; }\n  return r;\n}")),
            (concat!("neg_", $letter), concat!("fn neg_", $letter, "(a: ", $type, ") -> ", $type, " { return ", $type, "(0) - a; }")),
            (concat!("abs_", $letter), concat!("fn abs_", $letter, "(a: ", $type, ") -> ", $type, " { return select(a, ", $type, "(0) - a, a < ", $type, "(0)); }")),
            (concat!("sign_", $letter), concat!("fn sign_", $letter, "(a: ", $type, ") -> ", $type, " {\n  let zero = ", $type, "(0);\n  if (a < zero) { return zero - ", $type, "(1); }\n  return select(zero, ", $type, "(1), a > zero);\n}")),
        )*]
    };
}

const INTEGERS: &[(&str, &str)] = for_each_integer! {
    ("i", "i32") ("u", "u32") ("l", "i64") ("m", "u64")
};

const FLOATS: &[(&str, &str)] = &[
    ("pick_f", "fn pick_f(c: bool, yes: f32, no: f32) -> f32 { return select(no, yes, c); }"),
    ("pick_t", "fn pick_t(c: bool, yes: bool, no: bool) -> bool { return select(no, yes, c); }"),
    // Not constants: a compiler may refuse them, or take it that they do not occur.
    ("inf_f", "fn inf_f() -> f32 { var bits = 0x7f800000u; return bitcast<f32>(bits); }"),
    ("nan_f", "fn nan_f() -> f32 { var bits = 0x7fc00000u; return bitcast<f32>(bits); }"),
    ("isnan_f", "fn isnan_f(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }"),
    ("isinf_f", "fn isinf_f(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }"),
    (
        "smaller_f",
        "fn smaller_f(a: f32, b: f32) -> f32 {\n  if (isnan_f(a)) { return a; }\n  if (isnan_f(b)) { return b; }\n  return select(b, a, a < b);\n}",
    ),
    (
        "larger_f",
        "fn larger_f(a: f32, b: f32) -> f32 {\n  if (isnan_f(a)) { return a; }\n  if (isnan_f(b)) { return b; }\n  return select(b, a, a > b);\n}",
    ),
    // Limits: a zero keeps its sign, and NaN stays NaN. By comparisons alone a driver may make a minimum of them, which
    // loses it (NVIDIA's for Vulkan does).
    (
        "at_least_f",
        "fn at_least_f(a: f32, least: f32) -> f32 {\n  if (isnan_f(a)) { return a; }\n  return select(a, least, a < least);\n}",
    ),
    (
        "at_most_f",
        "fn at_most_f(a: f32, most: f32) -> f32 {\n  if (isnan_f(a)) { return a; }\n  return select(a, most, a > most);\n}",
    ),
    // Rounded as IEEE 754 has it. WGSL allows 2.5 units in the last place, and anything for divisors above 2^126, where
    // drivers give 0. The quotient of the significands has two bits more than are kept: the device's own is near enough to
    // be put right by what it leaves, which wraps to the right integer.
    (
        "div_f",
        r"fn div_f(a: f32, b: f32) -> f32 {
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
}",
    ),
    // The remainder of truncated division, exact: digits are taken off one by one, as in musl's fmodf.
    (
        "rem_f",
        r"fn rem_f(x: f32, y: f32) -> f32 {
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
}",
    ),
    ("neg_f", "fn neg_f(a: f32) -> f32 { return bitcast<f32>(bitcast<u32>(a) ^ 0x80000000u); }"),
    ("abs_f", "fn abs_f(a: f32) -> f32 { return bitcast<f32>(bitcast<u32>(a) & 0x7fffffffu); }"),
    (
        "copysign_f",
        "fn copysign_f(a: f32, s: f32) -> f32 {\n  return bitcast<f32>((bitcast<u32>(a) & 0x7fffffffu) | (bitcast<u32>(s) & 0x80000000u));\n}",
    ),
    (
        "sign_f",
        "fn sign_f(a: f32) -> f32 {\n  if (isnan_f(a)) { return a; }\n  return select(select(a, -1.0, a < 0.0), 1.0, a > 0.0);\n}",
    ),
    (
        "sqrt_f",
        "fn sqrt_f(a: f32) -> f32 {\n  if (a < 0.0) { return nan_f(); }\n  if (isnan_f(a) || isinf_f(a)) { return a; }\n  return sqrt(a);\n}",
    ),
    ("floor_f", "fn floor_f(a: f32) -> f32 { return select(a, floor(a), abs(a) < 8388608.0); }"),
    ("ceil_f", "fn ceil_f(a: f32) -> f32 { return select(a, ceil(a), abs(a) < 8388608.0); }"),
    ("round_f", "fn round_f(a: f32) -> f32 { return select(a, round(a), abs(a) < 8388608.0); }"),
    // Limited to 0..1.
    ("unit_f", "fn unit_f(a: f32) -> f32 { return at_least_f(at_most_f(a, 1.0), 0.0); }"),
    (
        "exp_f",
        r"fn exp_f(arg: f32) -> f32 {
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
}",
    ),
    (
        "expm1_f",
        r"fn expm1_f(x: f32) -> f32 {
  var c = fma(x, 1.0 / 720.0, 1.0 / 120.0);
  c = fma(c, x, 1.0 / 24.0);
  c = fma(c, x, 1.0 / 6.0);
  c = fma(c, x, 0.5);
  return select(exp_f(x) - 1.0, fma(c * x, x, x), abs(x) < 0.25);
}",
    ),
    (
        "log_f",
        r"fn log_f(x: f32) -> f32 {
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
}",
    ),
    // What rounding takes from 1 + x is given back.
    (
        "log1p_f",
        r"fn log1p_f(x: f32) -> f32 {
  let u = 1.0 + x;
  if (u == 1.0 || isinf_f(x)) { return x; }
  return log_f(u) * (x / (u - 1.0));
}",
    ),
    (
        "sigmoid_f",
        r"fn sigmoid_f(x: f32) -> f32 {
  if (isnan_f(x)) { return x; }
  let e = exp_f(-abs(x));
  return select(1.0, e, x < 0.0) / (1.0 + e);
}",
    ),
    (
        "tanh_f",
        r"fn tanh_f(x: f32) -> f32 {
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
}",
    ),
    (
        "erf_f",
        r"fn erf_f(x: f32) -> f32 {
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
}",
    ),
    (
        "softplus_f",
        r"fn softplus_f(x: f32) -> f32 {
  if (isnan_f(x)) { return x; }
  let e = exp_f(-abs(x));
  return select(x, 0.0, x < 0.0) + log1p_f(e);
}",
    ),
    (
        "pow_f",
        r"fn pow_f(x: f32, y: f32) -> f32 {
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
}",
    ),
    // The nearest multiple of pi / 2, in three parts, is taken off: exact enough up to some thousands of turns.
    (
        "quadrant_f",
        r"fn quadrant_f(x: f32) -> vec2<f32> {
  let n = round(x * 0.63661977);
  var r = fma(n, -1.5703125, x);
  r = fma(n, -4.837513e-4, r);
  r = fma(n, -7.54979e-8, r);
  return vec2<f32>(r, n);
}",
    ),
    (
        "sincos_f",
        r"fn sincos_f(r: f32, quadrant: i32) -> f32 {
  let z = r * r;
  var s = fma(z, -1.9515296e-4, 0.008332161);
  s = fma(s, z, -0.16666655);
  let sine = fma(s * z, r, r);
  var c = fma(z, 2.4433157e-5, -0.0013887316);
  c = fma(c, z, 0.041666646);
  let cosine = fma(c * z, z, fma(-0.5, z, 1.0));
  let value = select(sine, cosine, (quadrant & 1) == 1);
  return select(value, -value, (quadrant & 2) == 2);
}",
    ),
    (
        "sin_f",
        "fn sin_f(x: f32) -> f32 {\n  if (isnan_f(x) || isinf_f(x)) { return nan_f(); }\n  if (abs(x) > 1e5) { return sin(x); }\n  let q = quadrant_f(x);\n  return sincos_f(q.x, i32(q.y));\n}",
    ),
    (
        "cos_f",
        "fn cos_f(x: f32) -> f32 {\n  if (isnan_f(x) || isinf_f(x)) { return nan_f(); }\n  if (abs(x) > 1e5) { return cos(x); }\n  let q = quadrant_f(x);\n  return sincos_f(q.x, i32(q.y) + 1);\n}",
    ),
    ("tan_f", "fn tan_f(x: f32) -> f32 { return sin_f(x) / cos_f(x); }"),
    (
        "atan_f",
        r"fn atan_f(x: f32) -> f32 {
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
}",
    ),
    (
        "asin_f",
        r"fn asin_f(x: f32) -> f32 {
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
}",
    ),
    ("acos_f", "fn acos_f(x: f32) -> f32 { return 1.5707964 - asin_f(x); }"),
    (
        "sinh_f",
        r"fn sinh_f(x: f32) -> f32 {
  if (isnan_f(x)) { return x; }
  let a = abs(x);
  if (a > 20.0) {
    let h = exp_f(0.5 * a);
    return copysign_f(0.5 * h * h, x);
  }
  let e = expm1_f(a);
  return copysign_f(0.5 * (e + e / (e + 1.0)), x);
}",
    ),
    (
        "cosh_f",
        r"fn cosh_f(x: f32) -> f32 {
  if (isnan_f(x)) { return x; }
  let h = exp_f(0.5 * abs(x));
  return 0.5 * h * h + 0.5 / h / h;
}",
    ),
    (
        "asinh_f",
        r"fn asinh_f(x: f32) -> f32 {
  if (isnan_f(x)) { return x; }
  let a = abs(x);
  if (a > 1e4) { return copysign_f(log_f(a) + 0.6931472, x); }
  return copysign_f(log1p_f(a + a * a / (1.0 + sqrt(a * a + 1.0))), x);
}",
    ),
    (
        "acosh_f",
        r"fn acosh_f(x: f32) -> f32 {
  if (isnan_f(x) || x < 1.0) { return nan_f(); }
  if (x > 1e4) { return log_f(x) + 0.6931472; }
  let t = x - 1.0;
  return log1p_f(t + sqrt(2.0 * t + t * t));
}",
    ),
    (
        "atanh_f",
        r"fn atanh_f(x: f32) -> f32 {
  let a = abs(x);
  if (isnan_f(x) || a > 1.0) { return nan_f(); }
  if (a == 1.0) { return copysign_f(inf_f(), x); }
  return copysign_f(0.5 * log1p_f(2.0 * a / (1.0 - a)), x);
}",
    ),
];

/// All functions.
const ALL: [(&str, &str); INTEGERS.len() + FLOATS.len()] = {
    let mut all = [("", ""); INTEGERS.len() + FLOATS.len()];
    let mut i = 0;
    while i < all.len() {
        all[i] = if i < FLOATS.len() { FLOATS[i] } else { INTEGERS[i - FLOATS.len()] };
        i += 1;
    }
    all
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_bring_what_they_call_once() {
        let text = functions(&["tanh_f", "sigmoid_f"]);
        for name in ["tanh_f", "sigmoid_f", "exp_f", "copysign_f", "isnan_f", "inf_f"] {
            assert_eq!(text.matches(&format!("fn {name}(")).count(), 1, "{name}");
        }
        assert!(!text.contains("fn log_f("));
    }
}
