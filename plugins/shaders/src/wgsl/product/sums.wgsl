// The result from parts of sums, or from sums of nothing.
//
// buffers: y, parts
// params: rows, cols, splits, n
// with: fn finish(sum: f32, addend_base: u32, row: u32, col: u32, at: u32) -> f32 { return sum; }
// over: i
// $walk: let at2 = e;, $number: f32, $element: f32, $has_parts: flag
let col = i % p.cols;
let line = i / p.cols;
let row = line % p.rows;
let e = line / p.rows;
$walk
var sum = $number();
#if has_parts
for (var s = 0u; s < p.splits; s++) { sum += parts[s * p.n + i]; }
#end
y[i] = $element(finish(sum, at2, row, col, i));
