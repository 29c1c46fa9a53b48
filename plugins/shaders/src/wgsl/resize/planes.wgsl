// Makes one position of several planes, so that tables are read and positions taken apart once for all of them.
//
// buffers: x, table: u32, y
// params: plane, plane_from, n_planes, per_thread
// over: i
// $place: var rest = i; var base = 0u;
// $before: let before = table[base];
// $type: f32, $value: v = x[plane];
$place
let at = i - rest * p.plane;
let first = rest * p.per_thread;
let end = min(first + p.per_thread, p.n_planes);
$before
for (var k = first; k < end; k++) {
  let plane = k * p.plane_from + base;
  var v = $type();
  $value
  y[k * p.plane + at] = v;
}
