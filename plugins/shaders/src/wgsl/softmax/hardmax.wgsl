// Hardmax of a line: 1 at the first of the largest.
//
// buffers: x, y
// params: n
// with: fn largest(v: f32, thread: u32) -> f32 { return v; } fn earliest(v: u32, thread: u32) -> u32 { return v; }
// over: thread, begin, end, base
// $step: 4, $at: let at = base + k;
var top = -inf_f();
for (var k = begin; k < end; k += ${step}u) {
  $at
  top = larger_f(top, x[at]);
}
top = largest(top, thread);
var place = p.n;
for (var k = begin; k < end; k += ${step}u) {
  $at
  if (x[at] == top || isnan_f(x[at])) { place = min(place, k); }
}
place = earliest(place, thread);
for (var k = begin; k < end; k += ${step}u) {
  $at
  y[at] = select(0.0, 1.0, k == place);
}
