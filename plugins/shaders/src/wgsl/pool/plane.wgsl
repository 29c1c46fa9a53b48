// Folds a plane by all threads of a workgroup.
//
// params: plane, start: f32
// with: fn join(a: f32, b: f32) -> f32 { return a + b; } fn term(x: f32) -> f32 { return x; } fn result(all: f32, n: f32) -> f32 { return all; } var<workgroup> parts: array<f32, 128>;
// over: e, t
// $threads: 128, $load: f32(e * p.plane + k)
var all = p.start;
for (var k = t; k < p.plane; k += ${threads}u) { all = join(all, term($load)); }
parts[t] = all;
workgroupBarrier();
for (var half = ${threads}u / 2u; half > 0u; half >>= 1u) {
  if (t < half) { parts[t] = join(parts[t], parts[t + half]); }
  workgroupBarrier();
}
let r = result(parts[0], f32(p.plane));
workgroupBarrier();
