// The place of a line's extreme: a workgroup shares the line. Of equal keys the place decides.
//
// buffers: y: vec2<u32>
// params: extent, inner
// $functions: fn key(at: u32) -> u32 { return at; } fn above(a: u32, b: u32) -> bool { return a > b; }
// $key: u32, $threads: 64, $takes: above(found, best), $nearer: <
$functions
var<workgroup> bests: array<$key, $threads>;
var<workgroup> places: array<u32, $threads>;

@compute @workgroup_size($threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) id: vec3<u32>) {
  let line = group.x;
  let base = line / p.inner * p.extent * p.inner + line % p.inner;
  var best = key(base + id.x * p.inner);
  var place = id.x;
  for (var k = id.x + ${threads}u; k < p.extent; k += ${threads}u) {
    let found = key(base + k * p.inner);
    if ($takes) {
      best = found;
      place = k;
    }
  }
  bests[id.x] = best;
  places[id.x] = place;
  workgroupBarrier();
  if (id.x == 0u) {
    for (var t = 1u; t < ${threads}u; t++) {
      let found = bests[t];
      if (above(found, best) || (!above(best, found) && places[t] $nearer place)) {
        best = found;
        place = places[t];
      }
    }
    y[line] = vec2<u32>(place, 0u);
  }
}
