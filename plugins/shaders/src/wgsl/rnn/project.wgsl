// A product of few rows with the weights: a line for each element.
//
// buffers: x, w, y, bias
// params: inputs, n_cols, width
// with: fn total(v: f32, thread: u32) -> f32 { return v; }
// over: line, thread, begin, end, base, is_first: bool
// $row_max: 3, $step: 4, $at: let at = base + k;, $biased: sum += bias[col];
let row = min(line / p.n_cols, ${row_max}u);
let col = line % p.n_cols;
var sum = 0.0;
for (var k = begin; k < end; k += ${step}u) {
  $at
  sum += x[row * p.inputs + k] * w[at];
}
sum = total(sum, thread);
if (is_first) {
  $biased
  y[line] = sum;
}
