// Finds the least and the greatest of numbers, with 0 among them: of a workgroup's, or of what workgroups found, from which
// scale and zero point follow.
//
// buffers: x, parts: vec2<f32>, linear: vec2<f32>, out_scale, out_zero: u32
// params: n
// $threads: 256, $is_last: flag
var<workgroup> ends: array<vec2<f32>, $threads>;
fn join(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
  return vec2<f32>(select(a.x, b.x, b.x < a.x), select(a.y, b.y, b.y > a.y));
}

@compute @workgroup_size($threads)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) t: u32) {
  var all = vec2<f32>();
  #if is_last
  for (var i = id.x; i < p.n; i += groups.x * ${threads}u) { all = join(all, parts[i]); }
  #else
  for (var i = id.x; i < p.n; i += groups.x * ${threads}u) { all = join(all, vec2<f32>(x[i])); }
  #end
  ends[t] = all;
  workgroupBarrier();
  for (var half = ${threads}u / 2u; half > 0u; half >>= 1u) {
    if (t < half) { ends[t] = join(ends[t], ends[t + half]); }
    workgroupBarrier();
  }
  if (t == 0u) {
    #if is_last
    // A tensor of zeros has no extent; any scale but 0 gives zeros back.
    let low = ends[0].x;
    let high = ends[0].y;
    let extent = select(high - low, 1.0, low == high);
    let step = div_f(extent, 255.0);
    let zero = round(clamp(0.0 - div_f(low, step), 0.0, 255.0));
    linear[0] = vec2<f32>(step, zero);
    out_scale[0] = step;
    out_zero[0] = u32(zero);
    #else
    parts[group.x] = ends[0];
    #end
  }
}
