// The mean and the variance of a line.
//
// buffers: x
// params: n
// with: fn total(v: f32, thread: u32) -> f32 { return v; }
// over: line, piece, thread, begin, end, base, is_first: bool
// $step: 4, $at: let at = base + k;
var sum = 0.0;
for (var k = begin; k < end; k += ${step}u) {
  $at
  sum += x[at];
}
let mean = total(sum, thread) / f32(p.n);
var squares = 0.0;
for (var k = begin; k < end; k += ${step}u) {
  $at
  let d = x[at] - mean;
  squares += d * d;
}
let variance = total(squares, thread) / f32(p.n);
