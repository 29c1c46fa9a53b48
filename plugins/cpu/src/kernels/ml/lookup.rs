//! LabelEncoder and OneHotEncoder: numbers looked up in a table.

use super::attributes::{elements, integers, ints, tensor_of};
use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{element_size, expect_output, extents};
use crate::stream::CpuStream;
use devbay_ops::{ML_DOMAIN, descriptor_of};
use devbay_plugin_api::reserve;
use devbay_plugin_api::sdk::*;

const NUMBERS: TypeVar = TypeVar::of(&[I64, F32, F64, I32, I16]);

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor_of(ML_DOMAIN, "LabelEncoder", 1, label_encoder)
        .types(&[NUMBERS, NUMBERS])
        .cost(cost)
        .doc("keys and values that are numbers"),
    descriptor_of(ML_DOMAIN, "OneHotEncoder", 1, one_hot_encoder)
        .types(&[TypeVar::of(&[I64, I32, F32, F64]), TypeVar::of(&[F32])])
        .cost(cost)
        .doc("categories that are numbers"),
];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    cost::per_output(request, 16)
}

const WHAT: &str = "a table of keys";

/// Elements of a chunk.
const GRAIN: usize = 4096;

/// A number as a key: integers as they are, floats by their value in f64, where zeros are equal and so are NaNs.
fn key_of_float(x: f64) -> i64 {
    let x = if x.is_nan() { f64::NAN } else { x + 0.0 };
    x.to_bits() as i64
}

/// Positions by keys: binary search, or an array where keys are close together.
enum Table {
    Sorted(Vec<(i64, usize)>),
    /// Positions of the keys from the first one on; `usize::MAX` for none.
    Close(i64, Vec<usize>),
}

impl Table {
    /// Creates a table. `takes_last` says which position counts of equal keys.
    fn new(keys: impl ExactSizeIterator<Item = i64>, takes_last: bool) -> Result<Self> {
        let mut list = reserve::with_capacity(keys.len(), WHAT)?;
        list.extend(keys.enumerate().map(|(i, key)| (key, i)));
        let order = |i: usize| if takes_last { usize::MAX - i } else { i };
        list.sort_unstable_by_key(|&(key, i)| (key, order(i)));
        list.dedup_by_key(|(key, _)| *key);
        let (Some(&(first, _)), Some(&(last, _))) = (list.first(), list.last()) else {
            return Ok(Self::Sorted(list));
        };
        let span = last.wrapping_sub(first) as u64;
        if span > 4 * list.len() as u64 + 64 {
            return Ok(Self::Sorted(list));
        }
        let mut close = reserve::filled(usize::MAX, span as usize + 1, WHAT)?;
        for (key, i) in list {
            close[(key - first) as usize] = i;
        }
        Ok(Self::Close(first, close))
    }

    fn find(&self, key: i64) -> Option<usize> {
        match self {
            Self::Sorted(list) => {
                let at = list.binary_search_by_key(&key, |(key, _)| *key).ok()?;
                Some(list[at].1)
            }
            Self::Close(first, close) => {
                let at = usize::try_from(i128::from(key) - i128::from(*first)).ok()?;
                close.get(at).copied().filter(|&i| i != usize::MAX)
            }
        }
    }
}

/// Reads elements of a type as keys. Floats become `whole` numbers, as in a cast, or keep their value.
#[derive(Clone, Copy)]
struct Keys {
    dtype: DType,
    whole: bool,
}

impl Keys {
    /// Calls `body` with the position and key of each element of a range.
    fn each(
        self,
        operands: &Operands<'_>,
        range: std::ops::Range<usize>,
        mut body: impl FnMut(usize, i64) -> Result<()>,
    ) -> Result<()> {
        macro_rules! run {
            ($type:ty, $key:expr) => {{
                let key = $key;
                let elements: &[$type] = operands.input(0);
                range.clone().zip(&elements[range]).try_for_each(|(i, &x)| body(i, key(x)))
            }};
        }
        match (self.dtype, self.whole) {
            (I64, _) => run!(i64, |x: i64| x),
            (I32, _) => run!(i32, |x: i32| i64::from(x)),
            (I16, _) => run!(i16, |x: i16| i64::from(x)),
            (F32, true) => run!(f32, |x: f32| x as i64),
            (F32, false) => run!(f32, |x: f32| key_of_float(x.into())),
            (F64, true) => run!(f64, |x: f64| x as i64),
            (_, _) => run!(f64, |x: f64| key_of_float(x)),
        }
    }
}

/// Numbers of an attribute, as bytes of their element type.
struct Values {
    dtype: DType,
    bytes: Vec<u8>,
}

/// Reads the keys or the values of a LabelEncoder: `side` is one of these words.
fn numbers(attrs: &Attrs<'_>, side: &str) -> Result<Values> {
    let of_ints = ints(attrs, &format!("{side}_int64s"))?;
    let of_floats = attrs.floats(&format!("{side}_floats"))?.unwrap_or_default();
    let name = format!("{side}_tensor");
    let of_tensor = tensor_of(attrs, &name)?;
    let bytes = |bytes: &[u8]| reserve::copied(bytes, "numbers of an attribute");
    match (&of_ints[..], &of_floats[..], of_tensor) {
        (ints, [], None) if !ints.is_empty() => {
            Ok(Values { dtype: I64, bytes: bytes(bytemuck::cast_slice(ints))? })
        }
        ([], floats, None) if !floats.is_empty() => {
            Ok(Values { dtype: F32, bytes: bytes(bytemuck::cast_slice(floats))? })
        }
        ([], [], Some(tensor)) => {
            let content =
                tensor.constant().ok_or_else(|| Error::invalid(format!("{name} has no content")))?;
            Ok(Values { dtype: tensor.dtype(), bytes: bytes(content)? })
        }
        ([], [], None) => Err(Error::unsupported(format!("{side} that are not numbers"))),
        _ => Err(Error::invalid(format!(
            "expected one of {side}_int64s, {side}_floats and {name}, found several"
        ))),
    }
}

/// Reads the value of keys that are not in the table.
fn default_value(attrs: &Attrs<'_>, dtype: DType) -> Result<Vec<u8>> {
    const NAME: &str = "default_tensor";
    if let Some(tensor) = tensor_of(attrs, NAME)? {
        let content = tensor.constant().unwrap_or_default();
        if tensor.dtype() != dtype || content.len() != element_size(dtype) {
            return Err(Error::invalid("expected one number of the values' element type as default_tensor"));
        }
        return Ok(reserve::copied(content, "one number")?);
    }
    let (int, float) = (attrs.int("default_int64", -1)?, attrs.float("default_float", -0.0)?);
    Ok(match dtype {
        I64 => int.to_le_bytes().to_vec(),
        I32 => (int as i32).to_le_bytes().to_vec(),
        I16 => (int as i16).to_le_bytes().to_vec(),
        F64 => f64::from(float).to_le_bytes().to_vec(),
        _ => float.to_le_bytes().to_vec(),
    })
}

struct Encoder {
    host: Host,
    keys: Keys,
    table: Table,
    /// Bytes of a value.
    size: usize,
    /// The values by position, then the one of keys that are not in the table.
    values: Vec<u8>,
    n: usize,
}

fn label_encoder(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let input = request.required_input(0)?;
    let shape = extents(input)?;
    expect_output(request, 0, &shape)?;
    let attrs = &request.attrs;
    let (keys, values) = (numbers(attrs, "keys")?, numbers(attrs, "values")?);
    if keys.dtype != input.dtype() {
        return Err(Error::invalid(format!("keys of {:?} for elements of {:?}", keys.dtype, input.dtype())));
    }
    if values.dtype != request.required_output(0)?.dtype() {
        return Err(Error::invalid(format!("values of {:?}, expected the output's type", values.dtype)));
    }
    let size = element_size(values.dtype);
    let (n_keys, n_values) = (keys.bytes.len() / element_size(keys.dtype), values.bytes.len() / size);
    if n_keys != n_values {
        return Err(Error::invalid(format!("expected as many values as keys, {n_keys}, found {n_values}")));
    }
    let tensor = input.retyped(keys.dtype, Some(&keys.bytes));
    let keys_list = match keys.dtype {
        F32 | F64 => reserve::collected(elements("keys", &tensor)?.into_iter().map(key_of_float), WHAT)?,
        _ => integers("keys", &tensor)?,
    };
    let mut bytes = values.bytes;
    reserve::extend(&mut bytes, default_value(attrs, values.dtype)?, WHAT)?;
    Ok(Prepared::new(Encoder {
        host: request.host,
        keys: Keys { dtype: keys.dtype, whole: false },
        table: Table::new(keys_list.into_iter(), false)?,
        size,
        values: bytes,
        n: shape.iter().product(),
    }))
}

impl Launch<CpuDevice> for Encoder {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let to = SendPtr(operands.output_ptr::<u8>(0));
        let (operands, default) = (&*operands, self.values.len() / self.size - 1);
        self.host.parallel_for(self.n, GRAIN, |range, _| {
            self.keys.each(operands, range, |i, key| {
                let at = self.table.find(key).unwrap_or(default);
                let value = &self.values[at * self.size..][..self.size];
                // SAFETY: the output has an element of this size for each of the input, and this one is the chunk's own.
                unsafe { core::ptr::copy_nonoverlapping(value.as_ptr(), to.at(i * self.size), self.size) };
                Ok(())
            })
        })
    }
}

struct OneHot {
    host: Host,
    keys: Keys,
    table: Table,
    n: usize,
    n_categories: usize,
    /// False if an unknown category is an error.
    zeros: bool,
}

fn one_hot_encoder(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let input = request.required_input(0)?;
    let categories = ints(&request.attrs, "cats_int64s")?;
    if categories.is_empty() {
        return Err(Error::unsupported("categories that are not integers"));
    }
    let shape = extents(input)?;
    let n_categories = categories.len();
    expect_output(request, 0, &[&shape[..], &[n_categories]].concat())?;
    Ok(Prepared::new(OneHot {
        host: request.host,
        keys: Keys { dtype: input.dtype(), whole: true },
        table: Table::new(categories.into_iter(), true)?,
        n: shape.iter().product(),
        n_categories,
        zeros: request.attrs.int("zeros", 1)? != 0,
    }))
}

impl Launch<CpuDevice> for OneHot {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let to = SendPtr(operands.output_ptr::<f32>(0));
        let operands = &*operands;
        self.host.parallel_for(self.n, (GRAIN / self.n_categories).max(1), |range, _| {
            self.keys.each(operands, range, |i, key| {
                let found = self.table.find(key);
                if found.is_none() && !self.zeros {
                    return Err(Error::invalid(format!(
                        "the category {key} at position {i} is not in cats_int64s, and zeros is 0"
                    )));
                }
                let at = to.at(i * self.n_categories);
                // SAFETY: the output has a row of categories for each element, and this one is the chunk's own.
                let row = unsafe { core::slice::from_raw_parts_mut(at, self.n_categories) };
                row.fill(0.0);
                if let Some(found) = found {
                    row[found] = 1.0;
                }
                Ok(())
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    #[test]
    fn floats_are_found_by_value() {
        let attrs = [
            ("keys_floats", Value::Floats(vec![0.0, f64::NAN, 1.5, 1.5])),
            ("values_int64s", Value::Ints(vec![10, 20, 30, 40])),
            ("default_int64", Value::Int(7)),
        ];
        let x = Array::of(&[5], &[-0.0f32, f32::NAN, -f32::NAN, 1.5, 2.0]);
        let y = run(Isa::Baseline, "LabelEncoder", &attrs, &[Some(x)], &[Some(Array::empty::<i64>(&[5]))]);
        assert_eq!(y.expect("runs")[0].as_ref().expect("an output").elements::<i64>(), [10, 20, 20, 30, 7]);
    }

    #[test]
    fn keys_far_apart_and_close_together() {
        let mapped = |keys: Vec<i64>| {
            let attrs = [
                ("values_floats", Value::Floats((0..keys.len()).map(|i| i as f64 + 0.5).collect())),
                ("keys_int64s", Value::Ints(keys)),
                ("default_float", Value::Float(-2.0)),
            ];
            let x = Array::of(&[5], &[i64::MIN, -3, 0, 4, i64::MAX]);
            let y =
                run(Isa::Baseline, "LabelEncoder", &attrs, &[Some(x)], &[Some(Array::empty::<f32>(&[5]))]);
            y.expect("runs")[0].as_ref().expect("an output").elements::<f32>()
        };
        assert_eq!(mapped(vec![4, -3, 0, -3]), [-2.0, 1.5, 2.5, 0.5, -2.0]);
        assert_eq!(mapped(vec![i64::MAX, 0, i64::MIN]), [2.5, -2.0, 1.5, -2.0, 0.5]);
    }

    #[test]
    fn unknown_categories_are_zeros_or_an_error() {
        let encoded = |zeros| {
            let attrs = [("cats_int64s", Value::Ints(vec![3, 9])), ("zeros", Value::Int(zeros))];
            let x = Array::of(&[3], &[9.7f32, 3.0, 4.0]);
            let y = run(
                Isa::Baseline,
                "OneHotEncoder",
                &attrs,
                &[Some(x)],
                &[Some(Array::empty::<f32>(&[3, 2]))],
            )?;
            Ok::<_, String>(y[0].as_ref().expect("an output").elements::<f32>())
        };
        assert_eq!(encoded(1), Ok(vec![0.0, 1.0, 1.0, 0.0, 0.0, 0.0]));
        let error = encoded(0).expect_err("an unknown category");
        assert!(error.contains("the category 4"), "{error}");
    }

    #[test]
    fn wrong_tables_are_refused() {
        let refused = |attrs: &[(&'static str, Value)], words: &str| {
            let x = Array::of(&[1], &[1i64]);
            let found =
                run(Isa::Baseline, "LabelEncoder", attrs, &[Some(x)], &[Some(Array::empty::<i64>(&[1]))]);
            let error = found.expect_err("refused");
            assert!(error.contains(words), "{error}");
        };
        let ints = |name, list: &[i64]| (name, Value::Ints(list.to_vec()));
        refused(&[ints("values_int64s", &[1])], "keys that are not numbers");
        refused(
            &[ints("keys_int64s", &[1, 2]), ints("values_int64s", &[1])],
            "as many values as keys, 2, found 1",
        );
        let floats = ("keys_floats", Value::Floats(vec![1.0]));
        refused(&[floats.clone(), ints("values_int64s", &[1])], "for elements of");
        refused(&[floats, ints("keys_int64s", &[1]), ints("values_int64s", &[1])], "found several");
    }
}
