// BatchNormalization of a channel's line. The product of both factors may overflow where the result does not.
//
// buffers: x, scale, bias, means, variances, y
// params: n_channels, epsilon: f32
// with: fn total(v: f32, thread: u32) -> f32 { return v; }
// over: line, piece, thread, begin, end, base, is_first: bool
// $step: 4, $at: let at = base + k;
let channel = line % p.n_channels;
let inverse = 1.0 / sqrt(variances[channel] + p.epsilon);
let factor = scale[channel];
let mean = means[channel];
let shift = bias[channel];
for (var k = begin; k < end; k += ${step}u) {
  $at
  y[at] = (x[at] - mean) * inverse * factor + shift;
}
