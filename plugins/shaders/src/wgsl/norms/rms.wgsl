// RMSNormalization of a row.
//
// buffers: x, scale, y
// params: n, epsilon: f32
// with: fn total(v: f32, thread: u32) -> f32 { return v; }
// over: line, piece, thread, begin, end, base, is_first: bool
// $step: 4, $at: let at = base + k;, $scale_at: let scale_at = k;
var squares = 0.0;
for (var k = begin; k < end; k += ${step}u) {
  $at
  squares += x[at] * x[at];
}
let inverse = 1.0 / sqrt(total(squares, thread) / f32(p.n) + p.epsilon);
for (var k = begin; k < end; k += ${step}u) {
  $at
  $scale_at
  y[at] = x[at] * inverse * scale[scale_at];
}
