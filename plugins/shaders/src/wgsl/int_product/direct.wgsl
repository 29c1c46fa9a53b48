// An element of a convolution of integers, where filters share nothing.
//
// buffers: y: i32
// params: c_in, plane, taps
// over: i
// $place: let row = i; let first = i;
// $x_zero: 0, $w_zero: 0
// $taps: sum += i32(x_base + w_base) - x_zero - w_zero;
$place
let x_zero = $x_zero;
let w_zero = $w_zero;
var sum = 0;
for (var c = 0u; c < p.c_in; c++) {
  let x_base = (first + c) * p.plane;
  let w_base = (row * p.c_in + c) * p.taps;
  $taps
}
y[i] = sum;
