// Where an image has the first tap of four neighbouring pixels of the output.
//
// params: cols, in_h: i32, in_w: i32, out_d: i32, out_h: i32, out_w: i32, stride_d: i32, stride_h: i32, stride_w: i32, pad_d: i32, pad_h: i32, pad_w: i32
// over: base, first
// $l: 0, $first: first, $base: base, $is_deep: flag
var pixels$l = min(vec4<u32>($first, $first + 1u, $first + 2u, $first + 3u), vec4<u32>(p.cols - 1u));
let first_w$l = vec4<i32>(pixels$l % vec4<u32>(u32(p.out_w))) * p.stride_w - p.pad_w;
pixels$l /= vec4<u32>(u32(p.out_w));
let first_h$l = vec4<i32>(pixels$l % vec4<u32>(u32(p.out_h))) * p.stride_h - p.pad_h;
pixels$l /= vec4<u32>(u32(p.out_h));
#if is_deep
let first_d$l = vec4<i32>(pixels$l % vec4<u32>(u32(p.out_d))) * p.stride_d - p.pad_d;
pixels$l /= vec4<u32>(u32(p.out_d));
let near$l = (first_d$l * p.in_h + first_h$l) * p.in_w + first_w$l + i32($base);
#else
let near$l = first_h$l * p.in_w + first_w$l + i32($base);
#end
