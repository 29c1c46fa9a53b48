// MeanVarianceNormalization of a line. The specification's function adds 1e-9, so that equal elements become 0.
//
// buffers: x, y
// with: fn total(v: f32, thread: u32) -> f32 { return v; }
// over: line, piece, thread, begin, end, base, is_first: bool
// $step: 4, $at: let at = base + k;
// $statistics: let mean = total(0.0, thread); let variance = mean;
$statistics
let deviation = sqrt(variance) + 1e-9;
for (var k = begin; k < end; k += ${step}u) {
  $at
  y[at] = (x[at] - mean) / deviation;
}
