// Runs code for each element of the window at `out_h`.. that lies within the image: `at` is its place in the plane and
// `tap` its number in the window.
//
// params: in_d: i32, in_h: i32, in_w: i32, kernel_d: i32, kernel_h: i32, kernel_w: i32, stride_d: i32, stride_h: i32, stride_w: i32, dilation_d: i32, dilation_h: i32, dilation_w: i32, pad_d: i32, pad_h: i32, pad_w: i32
// over: out_d: i32, out_h: i32, out_w: i32
// $is_deep: flag, $code: let code = tap + at;
#if is_deep
for (var tap_d = 0; tap_d < p.kernel_d; tap_d++) {
let at_d = out_d * p.stride_d - p.pad_d + tap_d * p.dilation_d;
if (at_d < 0 || at_d >= p.in_d) { continue; }
let number_d = u32(tap_d);
let place_d = u32(at_d);
#end
for (var tap_h = 0; tap_h < p.kernel_h; tap_h++) {
  let at_h = out_h * p.stride_h - p.pad_h + tap_h * p.dilation_h;
  if (at_h < 0 || at_h >= p.in_h) { continue; }
  #if is_deep
  let number_h = number_d * u32(p.kernel_h) + u32(tap_h);
  let place_h = place_d * u32(p.in_h) + u32(at_h);
  #else
  let number_h = u32(tap_h);
  let place_h = u32(at_h);
  #end
  for (var tap_w = 0; tap_w < p.kernel_w; tap_w++) {
    let at_w = out_w * p.stride_w - p.pad_w + tap_w * p.dilation_w;
    if (at_w < 0 || at_w >= p.in_w) { continue; }
    let number_w = number_h * u32(p.kernel_w) + u32(tap_w);
    let place_w = place_h * u32(p.in_w) + u32(at_w);
    let tap = number_w;
    let at = place_w;
    $code
  }
}
#if is_deep
}
#end
