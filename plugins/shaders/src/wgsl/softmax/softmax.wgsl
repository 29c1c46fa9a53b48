// Softmax or LogSoftmax of a line.
//
// buffers: x, y
// with: fn largest(v: f32, thread: u32) -> f32 { return v; } fn total(v: f32, thread: u32) -> f32 { return v; }
// over: thread, begin, end, base
// $step: 4, $at: let at = base + k;, $is_log: flag
var top = -inf_f();
for (var k = begin; k < end; k += ${step}u) {
  $at
  top = larger_f(top, x[at]);
}
top = largest(top, thread);
var sum = 0.0;
for (var k = begin; k < end; k += ${step}u) {
  $at
  #if is_log
  sum += exp_f(x[at] - top);
  #else
  // What a thread writes it alone reads again.
  let e = exp_f(x[at] - top);
  y[at] = e;
  sum += e;
  #end
}
sum = total(sum, thread);
#if is_log
let log = log_f(sum);
#end
for (var k = begin; k < end; k += ${step}u) {
  $at
  #if is_log
  y[at] = (x[at] - top) - log;
  #else
  y[at] = y[at] / sum;
  #end
}
