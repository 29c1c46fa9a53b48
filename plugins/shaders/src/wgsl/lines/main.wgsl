// Lines beside each other, with some threads for each: the entry, and what a thread knows of its line.
//
// params: n_lines, n, piece
// $functions:
// $n_threads: 64
// $arguments: @builtin(local_invocation_index) thread: u32
// $begin:
// $is_contiguous: flag, $width: 16, $height: 4, $base: let base = line * p.n;
// $code:
$functions

@compute @workgroup_size($n_threads)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, $arguments) {
  $begin
  let group = id.y * groups.x + id.x;
  let piece = id.z;
  #if is_contiguous
  let first = thread % ${height}u;
  let line = group * ${width}u + thread / ${height}u;
  #else
  let first = thread / ${width}u;
  let line = group * ${width}u + thread % ${width}u;
  #end
  let is_in = line < p.n_lines;
  $base
  let begin = piece * p.piece + first;
  let end = select(0u, min(p.n, (piece + 1u) * p.piece), is_in);
  let is_first = is_in && first == 0u;
  $code
}
