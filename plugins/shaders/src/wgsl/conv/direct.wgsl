// Four neighbouring elements of a row of a convolution, where filters share nothing.
//
// buffers: x, weights, y
// params: fours, channels, groups, c_in, c_out, plane, taps, in_d: i32, in_h: i32, in_w: i32, out_d: i32, out_h: i32, out_w: i32, kernel_d: i32, kernel_h: i32, kernel_w: i32, stride_d: i32, stride_h: i32, stride_w: i32, dilation_d: i32, dilation_h: i32, dilation_w: i32, pad_d: i32, pad_h: i32, pad_w: i32
// with: fn finish(sum: f32, addend_base: u32, row: u32, col: u32, at: u32) -> f32 { return sum; } fn x_at(line: u32, at: i32, is_line: bool) -> f32 { return 0.0; }
// over: i
// $is_deep: flag, $slides: flag, $write: y[at] = sum[0];
var rest = i / p.fours;
let out_w = i32(i % p.fours) * 4;
let out_h = i32(rest % u32(p.out_h));
rest /= u32(p.out_h);
#if is_deep
let out_d = i32(rest % u32(p.out_d));
rest /= u32(p.out_d);
#end
let row = rest % p.channels;
let first = (rest / p.channels * p.groups + row / p.c_out) * p.c_in;
let left = out_w * p.stride_w - p.pad_w;
var sum = vec4<f32>();
for (var c = 0u; c < p.c_in; c++) {
  let x_base = (first + c) * p.plane;
  let w_base = (row * p.c_in + c) * p.taps;
  // Padding is zeros that are multiplied: an infinite weight on it gives NaN.
  #if is_deep
  for (var tap_d = 0; tap_d < p.kernel_d; tap_d++) {
  let at_d = out_d * p.stride_d - p.pad_d + tap_d * p.dilation_d;
  let is_in_d = at_d >= 0 && at_d < p.in_d;
  #end
  for (var tap_h = 0; tap_h < p.kernel_h; tap_h++) {
    let at_h = out_h * p.stride_h - p.pad_h + tap_h * p.dilation_h;
    #if is_deep
    let is_in_h = is_in_d && at_h >= 0 && at_h < p.in_h;
    let line = select(0u, x_base + u32((at_d * p.in_h + at_h) * p.in_w), is_in_h);
    let w_line = w_base + u32((tap_d * p.kernel_h + tap_h) * p.kernel_w);
    #else
    let is_in_h = at_h >= 0 && at_h < p.in_h;
    let line = select(0u, x_base + u32(at_h * p.in_w), is_in_h);
    let w_line = w_base + u32(tap_h * p.kernel_w);
    #end
    #if slides
    // Along the row the four windows overlap where they move by one.
    var near = vec4<f32>(0.0, x_at(line, left, is_in_h), x_at(line, left + 1, is_in_h), x_at(line, left + 2, is_in_h));
    for (var tap_w = 0; tap_w < p.kernel_w; tap_w++) {
      near = vec4<f32>(near.yzw, x_at(line, left + tap_w + 3, is_in_h));
      sum += near * f32(weights[w_line + u32(tap_w)]);
    }
    #else
    for (var tap_w = 0; tap_w < p.kernel_w; tap_w++) {
      let at = left + tap_w * p.dilation_w;
      sum += vec4<f32>(x_at(line, at, is_in_h), x_at(line, at + p.stride_w, is_in_h), x_at(line, at + 2 * p.stride_w, is_in_h), x_at(line, at + 3 * p.stride_w, is_in_h)) * f32(weights[w_line + u32(tap_w)]);
    }
    #end
  }
  #if is_deep
  }
  #end
}
let at = i / p.fours * u32(p.out_w) + u32(out_w);
$write
