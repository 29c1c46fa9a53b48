// Reduces a line, or a piece of it.
//
// buffers: x, y, totals
// params: count, n_pieces
// with: fn whole(v: f32, thread: u32) -> f32 { return v; } fn fold(a: f32, b: f32) -> f32 { return a + b; }
// over: line, piece, thread, begin, end, base, is_first: bool
// $step: 4, $at: let at = base + k;, $type: f32, $start: f32(0), $load: x[at], $map: v * v, $finish: sqrt_f(v)
// $is_piece: flag
var total: $type = $start;
for (var k = begin; k < end; k += ${step}u) {
  $at
  let v = $load;
  total = fold(total, $map);
}
total = whole(total, thread);
if (is_first) {
  #if is_piece
  totals[line * p.n_pieces + piece] = total;
  #else
  let v = total;
  y[line] = $finish;
  #end
}
