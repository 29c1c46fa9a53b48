// Weighs the elements of one axis, of which there are too many to write out.
//
// buffers: x, table: u32
// params: taps0, d0, s0, at0, weights0
// with: var<private> v: u32;
// over: plane, c0
// $k: 0, $load: x[at]
var sum = 0.0;
for (var t = 0u; t < p.taps$k; t++) {
  let tap = t * p.d$k + c$k;
  let at = plane + table[p.at$k + tap] * p.s$k;
  sum += $load * bitcast<f32>(table[p.weights$k + tap]);
}
v = bitcast<u32>(sum);
