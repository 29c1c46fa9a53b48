// Adds up the products that fall on an element of the output.
//
// buffers: y, products
// params: channels, taps, plane, in_d: i32, in_h: i32, in_w: i32, out_d: i32, out_h: i32, out_w: i32, kernel_d: i32, kernel_h: i32, kernel_w: i32, stride_d: i32, stride_h: i32, stride_w: i32, dilation_d: i32, dilation_h: i32, dilation_w: i32, pad_d: i32, pad_h: i32, pad_w: i32, per_stride_d: f32, per_stride_h: f32, per_stride_w: f32
// with: fn finish(sum: f32, addend_base: u32, row: u32, col: u32, at: u32) -> f32 { return sum; } fn element_at(position: i32, stride: i32, per: f32, n: i32) -> i32 { return position; }
// over: i
// $is_deep: flag, $has_terms: flag, $element: f32
var rest = i;
let own_w = i32(rest % u32(p.in_w)) + p.pad_w;
rest /= u32(p.in_w);
let own_h = i32(rest % u32(p.in_h)) + p.pad_h;
rest /= u32(p.in_h);
#if is_deep
let own_d = i32(rest % u32(p.in_d)) + p.pad_d;
rest /= u32(p.in_d);
#end
let row = rest % p.channels;
var sum = 0.0;
#if has_terms
#if is_deep
for (var tap_d = 0; tap_d < p.kernel_d; tap_d++) {
let at_d = element_at(own_d - tap_d * p.dilation_d, p.stride_d, p.per_stride_d, p.out_d);
if (at_d < 0) { continue; }
#end
for (var tap_h = 0; tap_h < p.kernel_h; tap_h++) {
  let at_h = element_at(own_h - tap_h * p.dilation_h, p.stride_h, p.per_stride_h, p.out_h);
  if (at_h < 0) { continue; }
  for (var tap_w = 0; tap_w < p.kernel_w; tap_w++) {
    let at_w = element_at(own_w - tap_w * p.dilation_w, p.stride_w, p.per_stride_w, p.out_w);
    if (at_w < 0) { continue; }
    #if is_deep
    sum += products[(rest * p.taps + u32(((tap_d * p.kernel_h + tap_h) * p.kernel_w + tap_w))) * p.plane + u32(((at_d * p.out_h + at_h) * p.out_w + at_w))];
    #else
    sum += products[(rest * p.taps + u32((tap_h * p.kernel_w + tap_w))) * p.plane + u32((at_h * p.out_w + at_w))];
    #end
  }
}
#if is_deep
}
#end
#end
y[i] = $element(finish(sum, 0u, row, 0u, i));
