// A product inside another kernel: a workgroup of 64 threads makes 32 x 32 numbers, a thread 4 x 4 of them.
//
// buffers: x, w, y
// params: n_rows, n_cols, depth
// $begin: let zero = 0u;, $depth: p.depth, $a: x[row * p.depth + k], $b: w[col * p.depth + k], $by_columns: flag
// $skips_negative: flag, $write: y[row * p.n_cols + col] = sum;
var<workgroup> xs: array<f32, 528>;
var<workgroup> ws: array<f32, 528>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let row0 = id.y * 32u;
  let col0 = id.x * 32u;
  let down = thread / 8u;
  let across = thread % 8u;
  $begin
  // Sums are variables of their own: what is indexed by a loop may not stay in registers.
  #for j in 4
  var sums$j = vec4<f32>();
  #end
  for (var k0 = 0u; k0 < $depth; k0 += 16u) {
    for (var i = thread; i < 512u; i += 64u) {
      var v = 0.0;
      {
        let k = k0 + i % 16u;
        let row = row0 + i / 16u;
        if (k < $depth && row < p.n_rows) { v = $a; }
        xs[(i % 16u) * 33u + i / 16u] = v;
      }
      v = 0.0;
      {
        #if by_columns
        let k = k0 + i / 32u;
        let col = col0 + i % 32u;
        if (k < $depth && col < p.n_cols) { v = $b; }
        ws[(i / 32u) * 33u + i % 32u] = v;
        #else
        let k = k0 + i % 16u;
        let col = col0 + i / 16u;
        if (k < $depth && col < p.n_cols) { v = $b; }
        ws[(i % 16u) * 33u + i / 16u] = v;
        #end
      }
    }
    workgroupBarrier();
    for (var k = 0u; k < 16u; k++) {
      let at = k * 33u;
      let b = vec4<f32>(ws[at + across], ws[at + across + 8u], ws[at + across + 16u], ws[at + across + 24u]);
      #for j in 4
      #if skips_negative
      let v$j = xs[at + down + ${j}u * 8u];
      sums$j = select(fma(vec4<f32>(v$j), b, sums$j), sums$j, v$j < 0.0);
      #else
      sums$j = fma(vec4<f32>(xs[at + down + ${j}u * 8u]), b, sums$j);
      #end
      #end
    }
    workgroupBarrier();
  }
  #for j in 4
  for (var i = 0u; i < 4u; i++) {
    let row = row0 + down + ${j}u * 8u;
    let col = col0 + across + i * 8u;
    if (row < p.n_rows && col < p.n_cols) {
      var sum = sums$j[i];
      $write
    }
  }
  #end
}
