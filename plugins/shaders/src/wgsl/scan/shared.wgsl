// A workgroup shares a line: each thread takes a stretch, once to see what it adds and once to write it.
//
// buffers: x, y
// params: extent, inner, stretch
// $join: fn join(a: f32, b: f32) -> f32 { return a + b; }
// $type: f32, $start: 0.0, $threads: 64, $is_reverse: flag, $write: y[base + k * p.inner] = sum;
$join
var<workgroup> sums: array<$type, $threads>;

@compute @workgroup_size($threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) id: vec3<u32>) {
  let line = group.x;
  let base = line / p.inner * p.extent * p.inner + line % p.inner;
  let first = min(id.x * p.stretch, p.extent);
  let end = min(first + p.stretch, p.extent);
  var sum = $start;
  #if is_reverse
  for (var k = first; k < end; k++) { sum = join(sum, x[base + (p.extent - 1u - k) * p.inner]); }
  #else
  for (var k = first; k < end; k++) { sum = join(sum, x[base + k * p.inner]); }
  #end
  sums[id.x] = sum;
  workgroupBarrier();
  sum = $start;
  for (var t = 0u; t < id.x; t++) { sum = join(sum, sums[t]); }
  for (var k = first; k < end; k++) {
    $write
  }
}
