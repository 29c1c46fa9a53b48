// Folds planes: a workgroup makes a word of the result; its threads all know it, and write the same.
//
// buffers: x, y
// params: words, plane
// $functions: fn join(a: f32, b: f32) -> f32 { return a + b; }
// $threads: 128
// $each: parts[t] = join(x[i], 0.0); y[i] = parts[0];
$functions
var<workgroup> parts: array<f32, $threads>;

@compute @workgroup_size($threads)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  for (var i = group.x; i < p.words; i += groups.x) {
    $each
  }
}
