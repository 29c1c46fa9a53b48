// Where the lists of places begin, one behind the other: one workgroup adds up how many updates each has.
//
// buffers: counts: u32, ends: u32
// params: n_places
// $threads: 256
var<workgroup> sums: array<u32, $threads>;

@compute @workgroup_size($threads)
fn main(@builtin(local_invocation_id) id: vec3<u32>) {
  let stretch = (p.n_places - 1u) / ${threads}u + 1u;
  let first = min(id.x * stretch, p.n_places);
  let end = min(first + stretch, p.n_places);
  var sum = 0u;
  for (var k = first; k < end; k++) { sum += counts[k]; }
  sums[id.x] = sum;
  workgroupBarrier();
  sum = 0u;
  for (var t = 0u; t < id.x; t++) { sum += sums[t]; }
  for (var k = first; k < end; k++) {
    ends[k] = sum;
    sum += counts[k];
  }
}
