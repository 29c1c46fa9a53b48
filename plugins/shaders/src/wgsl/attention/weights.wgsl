// Makes weights of scores in their place.
//
// buffers: x, shown
// with: fn largest(v: f32, thread: u32) -> f32 { return v; } fn whole(v: f32, thread: u32) -> f32 { return v; }
// over: thread, begin, end, base
// $step: 4, $at: let at = base + k;, $hides: flag, $shows: flag
var top = -inf_f();
for (var k = begin; k < end; k += ${step}u) {
  $at
  #if hides
  let score = x[at];
  top = larger_f(top, select(score, -inf_f(), score == inf_f()));
  #else
  top = larger_f(top, x[at]);
  #end
}
top = largest(top, thread);
var sum = 0.0;
for (var k = begin; k < end; k += ${step}u) {
  $at
  #if hides
  let is_hidden = x[at] == inf_f();
  let e = select(exp_f(x[at] - top), 0.0, is_hidden);
  x[at] = select(e, -1.0, is_hidden);
  #else
  let e = exp_f(x[at] - top);
  x[at] = e;
  #end
  sum += e;
}
sum = whole(sum, thread);
for (var k = begin; k < end; k += ${step}u) {
  $at
  #if hides
  let e = x[at];
  x[at] = select(e / sum, e, e < 0.0);
  #else
  x[at] = x[at] / sum;
  #end
  #if shows
  shown[at] = select(x[at], select(sum, 0.0, sum >= 0.0), x[at] < 0.0);
  #end
}
