//! Differences of two tensors.

use crate::compare::Tolerance;
use devbay_core::Tensor;
use devbay_core::tensor::{BF16, DType, F16, F32, F64};
use half::{bf16, f16};
use serde::Serialize;

/// Differences of two tensors.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Type on side a.
    pub ty: String,
    /// Reason why the elements cannot be compared: the types differ.
    pub reason: Option<String>,
    /// Number of elements of each tensor.
    pub n_elements: usize,
    /// Number of elements that differ by more than the tolerance.
    pub n_differ: usize,
    /// The element that differs most; None if no elements can be compared.
    pub worst: Option<Worst>,
    /// Number of NaNs on each side.
    pub n_nan: [usize; 2],
    /// Number of infinities on each side.
    pub n_infinite: [usize; 2],
    /// Largest allowed difference.
    pub allowed: f64,
}

/// The element that differs most.
#[derive(Clone, Debug, Serialize)]
pub struct Worst {
    /// Its position.
    pub at: Vec<usize>,
    /// Its value on each side.
    pub values: [String; 2],
    /// Its difference; infinite if only one side is infinite or NaN.
    #[serde(serialize_with = "finite")]
    pub difference: f64,
    /// The difference as a share of the larger value.
    #[serde(serialize_with = "finite")]
    pub relative: f64,
    /// Floats of the type between the two values; None for integers, for NaN and if the types differ.
    pub ulps: Option<u64>,
}

/// Writes infinity as null, because JSON has no infinity.
fn finite<S: serde::Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    value.is_finite().then_some(*value).serialize(serializer)
}

/// Measures the difference of two tensors beyond a tolerance: `|a - b| <= relative * max|a| + absolute`, NaN and infinities
/// equal to themselves, integers equal. None if they do not differ.
pub fn differ(a: &Tensor, b: &Tensor, tolerance: Tolerance) -> Option<Measured> {
    if a.dtype() == b.dtype() && a.shape() == b.shape() && a.bytes() == b.bytes() {
        return None;
    }
    let mut measured = Measured {
        ty: a.tensor_type().to_string(),
        reason: None,
        n_elements: a.n_elements(),
        n_differ: a.n_elements(),
        worst: None,
        n_nan: [0; 2],
        n_infinite: [0; 2],
        allowed: 0.0,
    };
    let floats = is_float(a.dtype()) && is_float(b.dtype());
    if a.shape() != b.shape() || (a.dtype() != b.dtype() && !floats) {
        measured.reason = Some(format!("a has {}, b has {}", a.tensor_type(), b.tensor_type()));
        return Some(measured);
    }
    let (Some(x), Some(y)) = (numbers(a), numbers(b)) else {
        measured.reason = Some("their bytes differ".to_owned());
        return Some(measured);
    };
    let count = |f: fn(f64) -> bool| [&x, &y].map(|list| list.iter().filter(|&&value| f(value)).count());
    (measured.n_nan, measured.n_infinite) = (count(f64::is_nan), count(f64::is_infinite));
    if floats {
        let largest = x.iter().filter(|value| value.is_finite()).fold(0.0f64, |m, value| m.max(value.abs()));
        measured.allowed = tolerance.relative * largest + tolerance.absolute;
    }
    let mut worst: Option<(usize, f64)> = None;
    measured.n_differ = 0;
    for (i, (&p, &q)) in x.iter().zip(&y).enumerate() {
        let difference = match p == q || (p.is_nan() && q.is_nan()) {
            true => continue,
            false => (p - q).abs(),
        };
        // NaN exceeds every tolerance.
        let difference = if difference.is_nan() { f64::INFINITY } else { difference };
        measured.n_differ += usize::from(difference > measured.allowed);
        if worst.is_none_or(|(_, most)| difference > most) {
            worst = Some((i, difference));
        }
    }
    let (i, difference) = worst.filter(|_| measured.n_differ > 0)?;
    let larger = x[i].abs().max(y[i].abs());
    measured.worst = Some(Worst {
        at: position(a.shape(), i),
        values: [text(x[i], floats), text(y[i], floats)],
        difference,
        relative: if larger > 0.0 { difference / larger } else { 0.0 },
        ulps: (a.dtype() == b.dtype()).then(|| ulps(a.dtype(), x[i], y[i])).flatten(),
    });
    Some(measured)
}

fn is_float(dtype: DType) -> bool {
    [F16, BF16, F32, F64].contains(&dtype)
}

fn text(value: f64, is_float: bool) -> String {
    match is_float {
        true if value != 0.0 && !(1e-4..1e7).contains(&value.abs()) && value.is_finite() => {
            format!("{value:e}")
        }
        _ => value.to_string(),
    }
}

/// Returns the elements as f64; None for types that do not convert.
fn numbers(tensor: &Tensor) -> Option<Vec<f64>> {
    Some(match tensor.dtype() {
        F32 => tensor.elements::<f32>()?.iter().map(|&value| f64::from(value)).collect(),
        F64 => tensor.elements::<f64>()?.to_vec(),
        F16 => bytemuck::cast_slice(tensor.bytes()).iter().map(|value: &f16| value.to_f64()).collect(),
        BF16 => bytemuck::cast_slice(tensor.bytes()).iter().map(|value: &bf16| value.to_f64()).collect(),
        _ => tensor.to_ints().ok()??.into_iter().map(|value| value as f64).collect(),
    })
}

/// Converts a tensor of floats to another float type; None if either type is not a known float type.
pub fn converted(tensor: &Tensor, to: DType) -> Option<Tensor> {
    if tensor.dtype() == to {
        return Some(tensor.clone());
    }
    let values = numbers(tensor).filter(|_| is_float(tensor.dtype()))?;
    fn each<T: bytemuck::NoUninit>(values: Vec<f64>, narrow: impl Fn(f64) -> T) -> Vec<u8> {
        let elements: Vec<T> = values.into_iter().map(narrow).collect();
        bytemuck::cast_slice(&elements).to_vec()
    }
    let bytes = match to {
        F32 => each(values, |value| value as f32),
        F64 => each(values, |value| value),
        F16 => each(values, f16::from_f64),
        BF16 => each(values, bf16::from_f64),
        _ => return None,
    };
    Tensor::from_bytes(to, tensor.shape(), &bytes).ok()
}

/// Returns the position of an element.
fn position(shape: &[usize], i: usize) -> Vec<usize> {
    let mut rest = i;
    let mut at: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&extent| {
            let index = rest % extent;
            rest /= extent;
            index
        })
        .collect();
    at.reverse();
    at
}

/// Counts the floats of a type between two values.
fn ulps(dtype: DType, a: f64, b: f64) -> Option<u64> {
    if a.is_nan() || b.is_nan() {
        return None;
    }
    // Float bits without the sign are ordered like the floats.
    let ordered = |value: f64| {
        let (bits, sign) = match dtype {
            F32 => (i64::from((value.abs() as f32).to_bits()), value.is_sign_negative()),
            F16 => (i64::from(f16::from_f64(value.abs()).to_bits()), value.is_sign_negative()),
            BF16 => (i64::from(bf16::from_f64(value.abs()).to_bits()), value.is_sign_negative()),
            F64 => (value.abs().to_bits() as i64, value.is_sign_negative()),
            _ => return None,
        };
        Some(if sign { -i128::from(bits) } else { i128::from(bits) })
    };
    u64::try_from((ordered(a)? - ordered(b)?).unsigned_abs()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLERANCE: Tolerance = Tolerance { relative: 1e-4, absolute: 1e-5 };

    fn floats(values: &[f32]) -> Tensor {
        Tensor::from_elements(&[2, values.len() / 2], values).unwrap()
    }

    #[test]
    fn the_worst_element_is_named_with_its_place() {
        let (a, b) = (floats(&[1.0, 2.0, 3.0, 4.0]), floats(&[1.0, 2.5, 3.0, 4.1]));
        let measured = differ(&a, &b, TOLERANCE).unwrap();
        let worst = measured.worst.unwrap();
        assert_eq!((worst.at, worst.values), (vec![0, 1], ["2".to_owned(), "2.5".to_owned()]));
        assert_eq!((measured.n_differ, measured.n_elements), (2, 4));
        assert_eq!(worst.ulps, Some(1 << 21));
        assert!((worst.relative - 0.2).abs() < 1e-12);
    }

    #[test]
    fn what_is_within_the_tolerance_does_not_differ() {
        let (a, b) = (floats(&[1.0, 1000.0]), floats(&[1.05, 1000.0]));
        assert!(differ(&a, &b, TOLERANCE).is_none());
        let nan = f32::NAN;
        assert!(differ(&floats(&[nan, f32::INFINITY]), &floats(&[-nan, f32::INFINITY]), TOLERANCE).is_none());
        assert!(differ(&floats(&[0.0, -0.0]), &floats(&[-0.0, 0.0]), TOLERANCE).is_none());
    }

    #[test]
    fn nan_and_infinities_differ_from_numbers_and_are_counted() {
        let (a, b) = (floats(&[f32::NAN, 1.0]), floats(&[0.0, f32::NEG_INFINITY]));
        let measured = differ(&a, &b, TOLERANCE).unwrap();
        assert_eq!((measured.n_nan, measured.n_infinite, measured.n_differ), ([1, 0], [0, 1], 2));
        let worst = measured.worst.unwrap();
        assert_eq!((worst.at, worst.ulps), (vec![0, 0], None));
        assert!(serde_json::to_string(&differ(&a, &b, TOLERANCE)).unwrap().contains("\"difference\":null"));
    }

    #[test]
    fn integers_must_be_equal_and_types_the_same() {
        let ints = |values: &[i64]| Tensor::from_elements(&[values.len()], values).unwrap();
        let measured = differ(&ints(&[1_000_000, 5]), &ints(&[1_000_001, 5]), TOLERANCE).unwrap();
        assert_eq!((measured.n_differ, measured.worst.unwrap().at), (1, vec![0]));
        assert!(differ(&ints(&[1]), &ints(&[1, 2]), TOLERANCE).unwrap().reason.is_some());
        assert!(differ(&ints(&[1, 1]), &floats(&[1.0, 1.0]), TOLERANCE).unwrap().reason.is_some());
    }

    #[test]
    fn floats_of_two_types_are_compared_by_value() {
        let wide = floats(&[1.0, 0.1]);
        let narrow = converted(&wide, F16).unwrap();
        assert!(differ(&wide, &narrow, Tolerance { relative: 1e-2, absolute: 0.0 }).is_none());
        assert!(differ(&wide, &narrow, Tolerance { relative: 1e-6, absolute: 0.0 }).is_some());
    }
}
