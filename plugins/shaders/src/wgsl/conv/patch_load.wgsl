// Loads one channel and tap of four neighbouring pixels of the output.
//
// params: per_taps: f32, per_taps_hw: f32, per_kernel_w: f32, taps, taps_hw, plane, in_d: i32, in_h: i32, in_w: i32, kernel_w: i32, dilation_d: i32, dilation_h: i32, dilation_w: i32
// with: fn divide(n: u32, per: f32) -> u32 { return n; } fn pixel(at: u32) -> f32 { return 0.0; } var<private> v: vec4<f32>;
// over: k, base, near0: vec4<i32>, first_d0: vec4<i32>, first_h0: vec4<i32>, first_w0: vec4<i32>
// $l: 0, $base: base, $number: f32, $is_deep: flag
let channel = divide(k, p.per_taps);
let tap = k - channel * p.taps;
#if is_deep
let tap_d = divide(tap, p.per_taps_hw);
let tap_hw = tap - tap_d * p.taps_hw;
#else
let tap_hw = tap;
#end
let tap_h = divide(tap_hw, p.per_kernel_w);
let tap_w = tap_hw - tap_h * u32(p.kernel_w);
#if is_deep
let by_d = i32(tap_d) * p.dilation_d;
#end
let by_h = i32(tap_h) * p.dilation_h;
let by_w = i32(tap_w) * p.dilation_w;
// Below 0 is beyond any extent.
let within =
#if is_deep
(bitcast<vec4<u32>>(first_d$l + by_d) < vec4<u32>(u32(p.in_d))) &
#end
(bitcast<vec4<u32>>(first_h$l + by_h) < vec4<u32>(u32(p.in_h))) &
(bitcast<vec4<u32>>(first_w$l + by_w) < vec4<u32>(u32(p.in_w)));
#if is_deep
let at = select(vec4<u32>($base), bitcast<vec4<u32>>(near$l + ((by_d * p.in_h + by_h) * p.in_w + by_w + i32(channel * p.plane))), within);
#else
let at = select(vec4<u32>($base), bitcast<vec4<u32>>(near$l + (by_h * p.in_w + by_w + i32(channel * p.plane))), within);
#end
v = select(vec4<$number>(), vec4<$number>(pixel(at.x), pixel(at.y), pixel(at.z), pixel(at.w)), within);
