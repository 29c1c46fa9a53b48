// A thread makes a block of four random numbers.
//
// buffers: seed: u32, y: u32
// params: key_low, key_high, stream, n
// with: fn wide(a: u32, b: u32) -> vec2<u32> { return vec2<u32>(a, b); }
// over: i
// $own_key: flag, $value: counter[k]
var counter = vec4<u32>(i, p.stream, seed[2], seed[3]);
#if own_key
var key = vec2<u32>(p.key_low, p.key_high);
#else
var key = vec2<u32>(seed[0], seed[1]);
#end
for (var round = 0u; round < 10u; round++) {
  let first = wide(0xd2511f53u, counter.x);
  let second = wide(0xcd9e8d57u, counter.z);
  counter = vec4<u32>(second.y ^ counter.y ^ key.x, second.x, first.y ^ counter.w ^ key.y, first.x);
  key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
}
for (var k = 0u; k < 4u && k < p.n - 4u * i; k++) {
  y[4u * i + k] = $value;
}
