// A product of a few rows: threads go along columns and parts of the sum.
//
// buffers: a, b, y
// params: n_batch, cols, k, a_row, a_k, b_k, b_col, y_row, y_col, y_all
// $functions: fn finish(sum: f32, addend_base: u32, row: u32, col: u32, at: u32) -> f32 { return sum; }
// $vector: vec2<f32>, $element: f32, $rows: 2, $is_row: false
// $arguments: @builtin(local_invocation_index) t: u32
// $begin:
// $k_fast: flag, $cols: 16, $parts: 16
// $shuffled: { let a = sum; let b = a; sum = a + b; }
// $is_shuffled: flag, $is_summed: flag, $subgroup: 8, $n_sums: 2
// $walk: let at0 = e; let at1 = e; let at2 = e;
$functions
fn term(a_at: u32, b_at: u32, k: u32) -> $vector {
  return $vector(
    #for r in rows
    f32(a[a_at + ${r}u * p.a_row + k * p.a_k]),
    #end
  ) * f32(b[b_at + k * p.b_k]);
}
#if is_summed
var<workgroup> sums: array<$vector, 256>;
#end

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, $arguments) {
  $begin
  #if k_fast
  let part = t % ${parts}u;
  let own = t / ${parts}u;
  let beside = 1u;
  #else
  let own = t % ${cols}u;
  let part = t / ${cols}u;
  let beside = ${cols}u;
  #end
  let col = group.x * ${cols}u + own;
  let near = min(col, p.cols - 1u);
  for (var e = group.z; e < p.n_batch; e += groups.z) {
    $walk
    var sum = $vector();
    let b_at = at1 + near * p.b_col;
    var k = part;
    // Four loads are under way at a time.
    for (; k + 3u * ${parts}u < p.k; k += 4u * ${parts}u) {
      sum += term(at0, b_at, k) + term(at0, b_at, k + ${parts}u) + term(at0, b_at, k + 2u * ${parts}u) + term(at0, b_at, k + 3u * ${parts}u);
    }
    for (; k < p.k; k += ${parts}u) { sum += term(at0, b_at, k); }
    $shuffled
    #if is_summed
    #if is_shuffled
    if (part % ${subgroup}u == 0u) { sums[t / ${subgroup}u] = sum; }
    workgroupBarrier();
    if (part == 0u) {
      for (var j = 1u; j < ${n_sums}u; j++) { sum += sums[own * ${n_sums}u + j]; }
    }
    #else
    sums[t] = sum;
    workgroupBarrier();
    for (var half = ${parts}u / 2u; half > 0u; half >>= 1u) {
      if (part < half) { sums[t] += sums[t + half * beside]; }
      workgroupBarrier();
    }
    sum = sums[t];
    #end
    #end
    if (part == 0u && col < p.cols) {
      #for r in rows
      {
        let at = e * p.y_all + ${r}u * p.y_row + col * p.y_col;
        #if is_row
        y[at] = $element(finish(sum, at2, ${r}u, col, at));
        #else
        y[at] = $element(finish(sum[$r], at2, ${r}u, col, at));
        #end
      }
      #end
    }
    #if is_summed
    // The next sums are written where these were read.
    workgroupBarrier();
    #end
  }
}
