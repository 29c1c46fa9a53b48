// BatchNormalization of an element. The product of both factors may overflow where the result does not.
//
// buffers: x, scale, bias, means, variances, y
// params: n_channels, inner, epsilon: f32
// over: i
let channel = i / p.inner % p.n_channels;
let inverse = 1.0 / sqrt(variances[channel] + p.epsilon);
let factor = scale[channel];
y[i] = (x[i] - means[channel]) * inverse * factor + bias[channel];
