// The cosine and the sine of `i / n` turns, of n up to 2^28: whole quarters are taken off in integers.
fn turn(i: u32, n: u32) -> vec2<f32> {
  let quarters = (4u * i + n / 2u) / n;
  let rest = i32(4u * i) - i32(quarters * n);
  let angle = 1.5707964 * (f32(rest) / f32(n));
  return vec2<f32>(sincos_f(angle, i32(quarters) + 1), sincos_f(angle, i32(quarters)));
}
