// Loads four neighbouring rows or columns of a matrix one by one.
//
// buffers: a
// params: rows
// with: var<private> v: vec4<f32>;
// over: k, a_at0: vec4<u32>
// $buffer: a, $extent: rows, $l: 0, $k_fast: flag
#if k_fast
v = vec4<f32>(f32($buffer[${buffer}_at$l.x + k]), f32($buffer[${buffer}_at$l.y + k]), f32($buffer[${buffer}_at$l.z + k]), f32($buffer[${buffer}_at$l.w + k]));
#else
let at = ${buffer}_at$l + k * p.$extent;
v = vec4<f32>(f32($buffer[at.x]), f32($buffer[at.y]), f32($buffer[at.z]), f32($buffer[at.w]));
#end
