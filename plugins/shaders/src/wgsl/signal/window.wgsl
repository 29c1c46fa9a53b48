// An element of a window.
//
// buffers: y
// params: period, a: f32, b: f32, c: f32
// with: fn turn(i: u32, n: u32) -> vec2<f32> { return vec2<f32>(); }
// over: i
let once = turn(i % p.period, p.period).x;
let twice = turn(2u * i % p.period, p.period).x;
y[i] = p.a - p.b * once + p.c * twice;
