//! Fourier transforms. Complex numbers are a last dimension of 2.

use super::extent::{agree, axis, extent, plus, show, times, unknown};
use super::{Node, invalid};
use crate::types::{Dim, TensorType};
use devbay_plugin_api::sdk::Result;

/// Infers DFT: the length is the second operand, the axis the third.
pub fn dft(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    let inverse = node.flag("inverse", false)?;
    let onesided = node.flag("onesided", false)?;
    let stated = length(node, 1)?;
    let Some(dims) = &x.shape else {
        return node.result(x.dtype, None);
    };
    let Some((parts, signal)) = dims.split_last() else {
        return Err(invalid("expected a signal, found a scalar"));
    };
    expect_parts(parts)?;
    let mut result = match (node.optional(2), node.constant_int(2)?) {
        (Some(_), None) => unknown(signal.len()),
        (_, at) => {
            // Negative axes also count the last dimension, which is not part of the signal.
            let at = axis(at.unwrap_or(-2), dims.len())?;
            let Some(n) = signal.get(at) else {
                return Err(invalid(format!(
                    "expected an axis of the signal {}, found the last of {}",
                    show(signal),
                    show(dims)
                )));
            };
            let length = match (&stated, onesided && inverse) {
                (Some(length), _) => length.clone(),
                (None, false) => n.clone(),
                // The full signal of a one-sided spectrum.
                (None, true) => times(&plus(n, -1)?, 2)?,
            };
            let mut result = signal.to_vec();
            result[at] = match onesided && !inverse {
                true => bins(&length),
                false => length,
            };
            result
        }
    };
    result.push(Dim::Known(if onesided && inverse { 1 } else { 2 }));
    node.result(x.dtype, Some(result))
}

/// Infers STFT: step, window, and length of a frame are operands; frames that do not fit are left out.
pub fn stft(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.required(1)?;
    node.expect_rank(2, 1)?;
    let dims = match x.shape.as_deref() {
        None => unknown(3),
        // Exporters omit the dimension of 1 for real numbers.
        Some([batch, length]) => vec![batch.clone(), length.clone(), Dim::Known(1)],
        Some(dims) if dims.len() == 3 => dims.to_vec(),
        Some(dims) => {
            return Err(invalid(format!(
                "expected signals of shape [batch,length,1 or 2], found {}",
                show(dims)
            )));
        }
    };
    expect_parts(&dims[2])?;
    let frame = frame_length(node, &dims[1])?;
    let frames = match (dims[1].known(), frame.known(), node.constant_int(1)?) {
        (_, _, Some(step)) if step < 1 => {
            return Err(invalid(format!("expected a step between frames, found {step}")));
        }
        (Some(n), Some(frame), Some(step)) => match n.checked_sub(frame) {
            Some(rest) => Dim::Known(rest / extent(step.into())? + 1),
            None => {
                return Err(invalid(format!(
                    "expected a signal at least as long as a frame of {frame}, found {n}"
                )));
            }
        },
        _ => Dim::unknown(),
    };
    let frequencies = match node.flag("onesided", true)? {
        true => bins(&frame),
        false => frame,
    };
    let shape = vec![dims[0].clone(), frames, frequencies, Dim::Known(2)];
    node.result(x.dtype, Some(shape))
}

/// Returns the length of a frame: the fourth operand, the window's, or the whole signal's.
fn frame_length(node: &Node<'_>, signal: &Dim) -> Result<Dim> {
    let window = node.optional(2).map(|_| {
        let n = node.shape(2).and_then(<[Dim]>::first);
        n.cloned().unwrap_or_else(Dim::unknown)
    });
    match (length(node, 3)?, window) {
        (None, None) => Ok(signal.clone()),
        (Some(length), None) | (None, Some(length)) => Ok(length),
        (Some(length), Some(window)) => agree(&length, &window)
            .ok_or_else(|| invalid(format!("expected a window of {length} numbers, found {window}"))),
    }
}

/// Returns a length given by an operand; None if it is absent.
fn length(node: &Node<'_>, i: usize) -> Result<Option<Dim>> {
    match (node.optional(i), node.constant_int(i)?) {
        (None, _) => Ok(None),
        (Some(_), None) => Ok(Some(Dim::unknown())),
        (Some(_), Some(n @ 1..)) => Ok(Some(Dim::Known(extent(n.into())?))),
        (Some(_), Some(n)) => Err(invalid(format!("expected a length as input {i}, found {n}"))),
    }
}

/// Returns the frequencies of a real signal, without mirrored ones.
fn bins(length: &Dim) -> Dim {
    match length.known() {
        Some(n) => Dim::Known(n / 2 + 1),
        None => Dim::unknown(),
    }
}

fn expect_parts(parts: &Dim) -> Result<()> {
    match parts.known() {
        None | Some(1 | 2) => Ok(()),
        Some(n) => Err(invalid(format!(
            "expected a last dimension of 1 or 2 for real or complex numbers, found {n}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use crate::infer::testing::check;

    #[test]
    fn transforms() {
        check("DFT", "f32[1,10,4,1]", "f32[1,10,4,2]");
        check("DFT", "f32[1,10,4,1] i64[]{6} i64[]{1}", "f32[1,6,4,2]");
        check("DFT onesided=1", "f32[1,10,4,1] - i64[]{1}", "f32[1,6,4,2]");
        check("DFT onesided=1 inverse=1", "f32[1,6,4,2] - i64[]{1}", "f32[1,10,4,1]");
        check("DFT inverse=1", "f32[1,n,2]", "f32[1,n,2]");
        check("DFT", "f32[1,n,2] i64[]", "f32[1,?,2]");
        check("DFT", "f32[1,5,2] - i64[]", "f32[?,?,2]");
        check("DFT", "f32[..]", "f32[..]");
        check("DFT", "f32[1,5,3]", "error: a last dimension of 1 or 2");
        check("DFT", "f32[1,5,2] - i64[]{2}", "error: an axis of the signal");
        check("DFT", "f32[2]", "error: found axis -2");
        check("DFT", "f32[1,5,2] i64[]{0}", "error: a length as input 1");
        check("DFT onesided=1 inverse=1", "f32[1,0,2]", "error: negative");
    }

    #[test]
    fn frames() {
        check("STFT", "f32[b,160,1] i64[]{40} f32[80]", "f32[b,3,41,2]");
        check("STFT onesided=0", "f32[1,160,2] i64[]{40} - i64[]{64}", "f32[1,3,64,2]");
        check("STFT", "f32[1,160] i64[]{40} f32[80]", "f32[1,3,41,2]");
        check("STFT", "f32[1,160,1] i64[]", "f32[1,?,81,2]");
        check("STFT", "f32[1,n,1] i64[]{40} f32[80]", "f32[1,?,41,2]");
        check("STFT", "f32[..] i64[]{40}", "f32[?,?,?,2]");
        check(
            "STFT",
            "f32[1,160,1] i64[]{40} f32[80] i64[]{81}",
            "error: expected a window of 81 numbers, found 80",
        );
        check(
            "STFT",
            "f32[1,60,1] i64[]{40} f32[80]",
            "error: expected a signal at least as long as a frame of 80, found 60",
        );
        check("STFT", "f32[1,60,1] i64[]{0}", "error: a step between frames");
        check("STFT", "f32[60] i64[]{1}", "error: expected signals of shape");
    }
}
