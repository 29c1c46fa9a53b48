// LayerNormalization of a row.
//
// buffers: x, scale, bias, means, inverses, y
// params: epsilon: f32
// with: fn total(v: f32, thread: u32) -> f32 { return v; }
// over: line, piece, thread, begin, end, base, is_first: bool
// $step: 4, $at: let at = base + k;
// $statistics: let mean = total(0.0, thread); let variance = mean;
// $scale_at: let scale_at = k;, $bias_at: let bias_at = k;, $has_bias: flag, $has_means: flag, $has_inverses: flag
$statistics
let inverse = 1.0 / sqrt(variance + p.epsilon);
#if has_means
if (is_first) { means[line] = mean; }
#end
#if has_inverses
if (is_first) { inverses[line] = inverse; }
#end
for (var k = begin; k < end; k += ${step}u) {
  $at
  $scale_at
  #if has_bias
  $bias_at
  y[at] = (x[at] - mean) * inverse * scale[scale_at] + bias[bias_at];
  #else
  y[at] = (x[at] - mean) * inverse * scale[scale_at];
  #end
}
