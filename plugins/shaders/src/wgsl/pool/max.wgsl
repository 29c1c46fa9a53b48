// The largest element of a window, and its place in the plane. What is not a number is larger than all.
//
// params: plane, low: f32
// over: e
// $split: let out_w = i32(e);, $type: f32
// $taps: { let at = 0u; let value = 1.0; if (is_first || value > best) { is_first = false; best = value; best_at = at; } }
var rest = e;
$split
let base = rest * p.plane;
var best: $type = p.low;
var best_at = 0u;
var is_first = true;
$taps
