// The entry of a step over items: statements for every `i`.
//
// params: n_items
// $functions:
// $group: 256, $each: let each = i;
$functions

@compute @workgroup_size($group)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  let i = id.y * (groups.x * ${group}u) + id.x;
  if (i >= p.n_items) { return; }
  $each
}
