// The biases of a product with the weights: those behind the product, then those behind the one with the state. What
// stays apart of them is behind the first gates of each direction.
//
// buffers: bias
// params: width
// with: var<private> sum: f32;
// over: col
// $is_after: flag
let own = col % p.width;
#if is_after
sum += bias[2u * (col - own) + own];
if (own < p.width / 3u * 2u) { sum += bias[2u * (col - own) + p.width + own]; }
#else
sum += bias[2u * (col - own) + own] + bias[2u * (col - own) + p.width + own];
#end
