// GroupNormalization and InstanceNormalization of a group of channels.
//
// buffers: x, scale, bias, y
// params: epsilon: f32, n_groups, of_group, inner
// with: fn total(v: f32, thread: u32) -> f32 { return v; }
// over: line, piece, thread, begin, end, base, is_first: bool
// $step: 4, $at: let at = base + k;
// $statistics: let mean = total(0.0, thread); let variance = mean;
// $is_channel: flag
$statistics
let inverse = 1.0 / sqrt(variance + p.epsilon);
let first_channel = line % p.n_groups * p.of_group;
#if is_channel
let factor = scale[first_channel];
let shift = bias[first_channel];
for (var k = begin; k < end; k += ${step}u) {
  $at
  y[at] = (x[at] - mean) * inverse * factor + shift;
}
#else
for (var k = begin; k < end; k += ${step}u) {
  $at
  let channel = first_channel + k / p.inner;
  y[at] = (x[at] - mean) * inverse * scale[channel] + bias[channel];
}
#end
