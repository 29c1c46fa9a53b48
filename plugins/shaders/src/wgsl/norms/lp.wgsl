// LpNormalization of a line: by a sum of absolute values, or the root of one of squares. Zeros stay zeros.
//
// buffers: x, y
// with: fn total(v: f32, thread: u32) -> f32 { return v; }
// over: line, piece, thread, begin, end, base, is_first: bool
// $step: 4, $at: let at = base + k;, $is_square: flag
var sum = 0.0;
for (var k = begin; k < end; k += ${step}u) {
  $at
  #if is_square
  sum += x[at] * x[at];
  #else
  sum += abs(x[at]);
  #end
}
sum = total(sum, thread);
#if is_square
let norm = select(sqrt(sum), 1.0, sum == 0.0);
#else
let norm = select(sum, 1.0, sum == 0.0);
#end
for (var k = begin; k < end; k += ${step}u) {
  $at
  y[at] = div_f(x[at], norm);
}
