// The product of two words as a pair of them, low bits first.
fn wide(a: u32, b: u32) -> vec2<u32> {
  let low = (a & 0xffffu) * (b & 0xffffu);
  let cross = (a >> 16u) * (b & 0xffffu);
  let other = (a & 0xffffu) * (b >> 16u);
  let middle = (low >> 16u) + (cross & 0xffffu) + (other & 0xffffu);
  return vec2<u32>((middle << 16u) | (low & 0xffffu),
    (a >> 16u) * (b >> 16u) + (cross >> 16u) + (other >> 16u) + (middle >> 16u));
}
