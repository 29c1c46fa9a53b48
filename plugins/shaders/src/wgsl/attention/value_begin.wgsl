// Where a head's values and results are.
//
// params: heads, group, v_batch, v_head, y_batch, y_head
// over: id: vec3<u32>
let batch = id.z / p.heads;
let head = id.z % p.heads;
let from_v = batch * p.v_batch + head / p.group * p.v_head;
let to_y = batch * p.y_batch + head * p.y_head;
