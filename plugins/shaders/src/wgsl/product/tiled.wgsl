// A product in tiles: a workgroup makes a tile of the result from tiles of A and B in its memory.
//
// buffers: y
// params: rows, cols, k, n_batch, splits, k_per
// with: fn finish(sum: f32, addend_base: u32, row: u32, col: u32, at: u32) -> f32 { return sum; }
// $functions: fn pixel(at: u32) -> u32 { return at; }
// $number: f32, $a_size: 512, $b_size: 512
// $store: fn store(e: u32, part: u32, addend_base: u32, row: u32, col: u32, v: vec4<f32>) { y[at_of(row, col)] = v.x; } fn at_of(row: u32, col: u32) -> u32 { return row * p.cols + col; }
// $threads: 64, $tx: 8, $ty: 8, $rows: 64, $cols: 64, $k: 16
// $walk: let at0 = e; let at1 = e; let at2 = e;
// $places: let a0_k = t; let a0_four = t; var a0 = vec4<f32>(); let b0_k = t; let b0_four = t; var b0 = vec4<f32>();
// $loads: a0 = vec4<f32>(f32(k0 + a0_k)); b0 = a0;
// $stores: a_tile[a0_k + a0_four] = a0; b_tile[b0_k + b0_four] = b0;
// $steps: 16u, $a_line: 17, $b_line: 17, $row_fours: 2, $col_fours: 1, $n_sums: 8
$functions
var<workgroup> a_tile: array<vec4<$number>, $a_size>;
var<workgroup> b_tile: array<vec4<$number>, $b_size>;
$store

@compute @workgroup_size($threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  let tx = t % ${tx}u;
  let ty = t / ${tx}u;
  let row0 = group.y * ${rows}u;
  let col0 = group.x * ${cols}u;
  for (var z = group.z; z < p.n_batch * p.splits; z += groups.z) {
    let e = z / p.splits;
    let part = z % p.splits;
    let k_begin = part * p.k_per;
    let k_end = min(k_begin + p.k_per, p.k);
    $walk
    $places
    #for i in row_fours
    #for l in 4
    #for c in col_fours
    var sum${i}_${l}_$c = vec4<$number>();
    #end
    #end
    #end
    // A tile is on its way while the one before it is multiplied.
    for (var k0 = k_begin; ; k0 += ${k}u) {
      if (k0 < k_end) {
        $loads
      }
      if (k0 > k_begin) {
        for (var kk = 0u; kk < $steps; kk++) {
          #for i in row_fours
          let x$i = a_tile[kk * ${a_line}u + ty + $i * ${ty}u];
          #end
          #for i in col_fours
          let w$i = b_tile[kk * ${b_line}u + tx + $i * ${tx}u];
          #end
          #for i in row_fours
          #for l in 4
          #for c in col_fours
          sum${i}_${l}_$c += x$i[$l] * w$c;
          #end
          #end
          #end
        }
      }
      if (k0 >= k_end) { break; }
      workgroupBarrier();
      $stores
      workgroupBarrier();
    }
    // A loop, and not a copy of what follows the sums for each of them.
    var sums = array<vec4<$number>, $n_sums>(
      #for i in row_fours
      #for l in 4
      #for c in col_fours
      sum${i}_${l}_$c,
      #end
      #end
      #end
    );
    for (var i = 0u; i < ${n_sums}u; i++) {
      let r = i / ${col_fours}u;
      store(e, part, at2, row0 + (ty + r / 4u * ${ty}u) * 4u + r % 4u, col0 + (tx + i % ${col_fours}u * ${tx}u) * 4u, sums[i]);
    }
  }
}
