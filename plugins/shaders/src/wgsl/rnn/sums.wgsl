// Sums of gates, for a range of rows, from products with the state or with what a reset gate leaves of it.
//
// buffers: products, r: vec4<f32>, bias
// params: hidden, width, r_row, r_k
// with: var<workgroup> h: array<f32, 64>; var<workgroup> gates: array<f32, 64>;
// over: thread, d, weights, from_input
// $first: thread, $end: p.width, $state: h, $threads: 64, $is_after: flag, $has_bias: flag
for (var row = $first; row < $end; row += ${threads}u) {
  var at = weights + row * p.r_row;
  var sums = vec4<f32>();
  for (var k = 0u; k < p.hidden; k += 4u) {
    let some = vec4<f32>($state[k], $state[k + 1u], $state[k + 2u], $state[k + 3u]);
    sums = fma(r[at], some, sums);
    at += p.r_k;
  }
  var sum = (sums.x + sums.y) + (sums.z + sums.w);
  #if is_after
  // The reset gate acts behind the product, whose bias then stays apart.
  if (row < 2u * p.hidden) {
    sum += products[from_input + row];
  } else {
    #if has_bias
    sum += bias[(2u * d + 1u) * p.width + row];
    #end
  }
  #else
  sum += products[from_input + row];
  #end
  gates[row] = sum;
}
