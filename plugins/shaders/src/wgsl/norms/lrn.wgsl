// LRN of an element, from those at its place in the channels around it.
//
// buffers: x, y
// params: inner, n_channels, before, after, scale: f32, bias: f32, beta: f32
// over: i
let channel = i / p.inner % p.n_channels;
let first = channel - min(channel, p.before);
let last = min(channel + p.after, p.n_channels - 1u);
var at = i - (channel - first) * p.inner;
var squares = 0.0;
for (var k = first; k <= last; k++) {
  squares += x[at] * x[at];
  at += p.inner;
}
y[i] = x[i] / pow_f(p.bias + p.scale * squares, p.beta);
