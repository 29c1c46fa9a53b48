// Where a head's queries and keys are.
//
// params: heads, group, q_batch, q_head, k_batch, k_head
// over: id: vec3<u32>
let batch = id.z / p.heads;
let head = id.z % p.heads;
let from_q = batch * p.q_batch + head * p.q_head;
let from_k = batch * p.k_batch + head / p.group * p.k_head;
