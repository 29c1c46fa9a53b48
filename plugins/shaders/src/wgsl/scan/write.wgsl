// Joins an element of a line with those before it, and writes what they are.
//
// buffers: x, y
// params: extent, inner
// with: fn join(a: f32, b: f32) -> f32 { return a + b; } var<private> sum: f32;
// over: base, k
// $is_reverse: flag, $is_exclusive: flag
#if is_reverse
let at = base + (p.extent - 1u - k) * p.inner;
#else
let at = base + k * p.inner;
#end
#if is_exclusive
let own = x[at];
y[at] = sum;
sum = join(sum, own);
#else
sum = join(sum, x[at]);
y[at] = sum;
#end
