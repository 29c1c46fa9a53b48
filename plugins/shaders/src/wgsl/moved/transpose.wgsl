// Tiles of words go through a workgroup's memory, so that reads and writes are both in rows.
//
// buffers: x: u32, y: u32
// params: rows, cols, row_stride, col_stride, start, n_planes
// $tile: 16, $pitch: 17
// $offsets: from_at += rest; to_at += rest;
var<workgroup> tile: array<u32, $tile * $pitch>;

@compute @workgroup_size($tile, $tile)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_id) id: vec3<u32>) {
  for (var plane = group.z; plane < p.n_planes; plane += groups.z) {
    var rest = plane;
    var from_at = p.start;
    var to_at = 0u;
    $offsets
    let from_row = group.y * ${tile}u + id.x;
    let from_col = group.x * ${tile}u + id.y;
    if (from_row < p.rows && from_col < p.cols) {
      tile[id.y * ${pitch}u + id.x] = x[from_at + from_row + from_col * p.col_stride];
    }
    workgroupBarrier();
    let row = group.y * ${tile}u + id.y;
    let col = group.x * ${tile}u + id.x;
    if (row < p.rows && col < p.cols) {
      y[to_at + row * p.row_stride + col] = tile[id.x * ${pitch}u + id.y];
    }
    workgroupBarrier();
  }
}
