//! The header of packed weights: whether all of them are finite.
//!
//! What a window sees of the padding are zeros, which are left out only if their products are zeros too.

/// Numbers of the header: a line of the cache, so that panels are aligned.
pub const HEADER: usize = 16;

/// Writes the header of packed weights, and returns what is behind it. Weights count as finite below `limit`, a positive number.
pub fn mark_finite<'a>(weights: &[f32], limit: f32, packed: &'a mut [f32]) -> &'a mut [f32] {
    let (header, packed) = packed.split_at_mut(HEADER);
    header.fill(0.0);
    // Of numbers without their signs, those that are not finite have the largest bits. Integers, so that it runs on vectors.
    let largest = weights.iter().fold(0, |largest, weight| (weight.abs().to_bits() as i32).max(largest));
    header[0] = f32::from(u8::from(largest < limit.to_bits() as i32));
    packed
}

/// Returns whether all weights are finite, as the header of packed ones says.
///
/// # Safety
/// There is a header.
pub unsafe fn is_finite(packed: *const f32) -> bool {
    // SAFETY: there is a header (# Safety).
    unsafe { *packed != 0.0 }
}
