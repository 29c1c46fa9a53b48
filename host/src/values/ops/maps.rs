//! ZipMap, CastMap and DictVectorizer.

use super::{Site, Work, invalid, take, wrong};
use crate::values::{Element, Map, Sequence, Strings, Value, ValueType};
use devbay_core::tensor::{DType, F32, F64, I64};
use devbay_core::{Result, Tensor};
use std::collections::HashMap;
use std::sync::Arc;

/// Returns the keys of a ZipMap, `[n]`.
fn zip_keys(site: &Site<'_>) -> Result<Value> {
    match (site.attrs.ints("classlabels_int64s")?, site.attrs.texts("classlabels_strings")?) {
        (Some(keys), None) => Ok(Tensor::from_elements(&[keys.len()], keys)?.into()),
        (None, Some(keys)) => Ok(Strings::new(&[keys.len()], keys.clone())?.into()),
        _ => Err(invalid("expected classlabels_int64s or classlabels_strings, found neither or both")),
    }
}

/// A sequence of maps.
pub fn zip_type(site: &Site<'_>) -> Result<Vec<ValueType>> {
    let keys = zip_keys(site)?.ty().element().unwrap_or(Element::String);
    let map = ValueType::Map { keys, values: Element::Number(F32) };
    Ok(vec![ValueType::sequence(map)])
}

/// ZipMap: a map for each row of the operand, `[n, keys]` or `[keys]`.
pub fn zip(site: &Site<'_>) -> Result<Work> {
    let keys = zip_keys(site)?;
    let n_keys = keys.shape()?[0];
    let empty: Value = Tensor::zeros(F32, &[n_keys])?.into();
    // Keys that are there twice are refused now, not at the first run.
    let element = Value::from(Map::new(keys.clone(), empty).map_err(|error| invalid(error.text()))?).ty();
    Ok(Box::new(move |mut operands| {
        let tensor = take(&mut operands, 0)?.into_tensor()?;
        let found = tensor.tensor_type();
        let refused =
            || wrong(format!("expected numbers f32[n, {n_keys}], one column a label, found {found}"));
        let values = tensor.elements::<f32>().ok_or_else(refused)?;
        if !matches!(tensor.shape(), [n] | [_, n] if *n == n_keys) {
            return Err(refused());
        }
        let row = |row: &[f32]| {
            let row: Value = Tensor::from_elements(&[n_keys], row)?.into();
            Ok(Map::new(keys.clone(), row)?.into())
        };
        let maps = values.chunks_exact(n_keys.max(1)).map(row).collect::<Result<Vec<Value>>>()?;
        Ok(vec![Sequence::new(element.clone(), maps)?.into()])
    }))
}

/// The target of a CastMap.
fn target(site: &Site<'_>) -> Result<Element> {
    Ok(match site.attrs.text("cast_to")?.map_or("TO_FLOAT", |target| &**target) {
        "TO_FLOAT" => Element::Number(F32),
        "TO_INT64" => Element::Number(I64),
        "TO_STRING" => Element::String,
        other => {
            return Err(invalid(format!(
                "expected TO_FLOAT, TO_STRING or TO_INT64 as cast_to, found {other:?}"
            )));
        }
    })
}

/// A tensor of the target's type.
pub fn cast_type(site: &Site<'_>) -> Result<Vec<ValueType>> {
    Ok(vec![ValueType::tensor(Some(target(site)?))])
}

/// CastMap: the elements by ascending key, `[1, n]`; or each at the position of its key, with zeroes or empty texts between.
pub fn cast(site: &Site<'_>) -> Result<Work> {
    let target = target(site)?;
    let length = match site.attrs.text("map_form")?.map_or("DENSE", |form| &**form) {
        "DENSE" => None,
        "SPARSE" => {
            let n = site.attrs.int_or("max_map", 1)?;
            Some(
                usize::try_from(n)
                    .ok()
                    .filter(|&n| n > 0)
                    .ok_or_else(|| invalid(format!("expected max_map of 1 or more, found {n}")))?,
            )
        }
        other => return Err(invalid(format!("expected DENSE or SPARSE as map_form, found {other:?}"))),
    };
    Ok(Box::new(move |mut operands| {
        let map = take(&mut operands, 0)?.into_map()?;
        let keys = map
            .int_keys()
            .ok_or_else(|| wrong(format!("expected keys of int64, found {}", map.key_type())))?;
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_unstable_by_key(|&i| keys[i]);
        let places: Vec<Option<usize>> = match length {
            None => order.into_iter().map(Some).collect(),
            Some(length) => {
                let mut places = devbay_plugin_api::reserve::with_capacity(length, "the places of a map")?;
                places.resize(length, None);
                for i in order {
                    let place = usize::try_from(keys[i]).ok().and_then(|at| places.get_mut(at));
                    *place.ok_or_else(|| {
                        wrong(format!("expected keys from 0 to {}, found {}", length - 1, keys[i]))
                    })? = Some(i);
                }
                places
            }
        };
        Ok(vec![converted(map.values(), &places, target)?])
    }))
}

/// Returns elements at these places, `[1, n]`, in another type; zero or an empty text for none.
fn converted(values: &Value, places: &[Option<usize>], target: Element) -> Result<Value> {
    let placed = placed(values, places)?;
    match (placed, target) {
        (Value::Tensor(tensor), Element::String) => {
            let texts = super::cast::texts(&tensor)?;
            let empty: Arc<str> = Arc::from("");
            let text = |(text, place): (Arc<str>, &Option<usize>)| {
                if place.is_some() { text } else { Arc::clone(&empty) }
            };
            Ok(Strings::new(tensor.shape(), texts.into_iter().zip(places).map(text).collect())?.into())
        }
        (Value::Tensor(tensor), Element::Number(dtype)) => Ok(as_number(&tensor, dtype)?.into()),
        (Value::Strings(strings), Element::Number(dtype)) => {
            let zero: Arc<str> = Arc::from("0");
            let text = |(text, place): (&Arc<str>, &Option<usize>)| {
                Arc::clone(if place.is_some() { text } else { &zero })
            };
            let texts = strings.elements().iter().zip(places).map(text).collect();
            Ok(super::cast::numbers(&Strings::new(strings.shape(), texts)?, dtype)?.into())
        }
        (strings, _) => Ok(strings),
    }
}

/// Returns a map's numbers as f32, or without their fractions as i64.
fn as_number(tensor: &Tensor, dtype: DType) -> Result<Tensor> {
    let shape = tensor.shape();
    match (tensor.elements::<f32>(), tensor.elements::<f64>(), tensor.elements::<i64>(), dtype) {
        (Some(x), _, _, I64) => {
            Tensor::from_elements(shape, &x.iter().map(|&x| x as i64).collect::<Vec<_>>())
        }
        (_, Some(x), _, I64) => {
            Tensor::from_elements(shape, &x.iter().map(|&x| x as i64).collect::<Vec<_>>())
        }
        (_, Some(x), _, F32) => {
            Tensor::from_elements(shape, &x.iter().map(|&x| x as f32).collect::<Vec<_>>())
        }
        (_, _, Some(x), F32) => {
            Tensor::from_elements(shape, &x.iter().map(|&x| x as f32).collect::<Vec<_>>())
        }
        _ => Ok(tensor.clone()),
    }
}

/// A tensor of the elements' type.
pub fn vector_type(site: &Site<'_>) -> Result<Vec<ValueType>> {
    match site.input(0)? {
        ValueType::Map { values, .. } => Ok(vec![ValueType::tensor(Some(*values))]),
        other => Err(invalid(format!("expected a map, found {other}"))),
    }
}

/// DictVectorizer: the elements at the positions of their keys in the vocabulary, `[1, n]`, with zeroes or empty texts
/// between. A key that is not in the vocabulary has no place: scikit-learn and onnxruntime leave it out, though ONNX's
/// specification excludes such keys.
pub fn vectorizer(site: &Site<'_>) -> Result<Work> {
    let (ints, texts) = (site.attrs.ints("int64_vocabulary")?, site.attrs.texts("string_vocabulary")?);
    let (n, ints, texts): (usize, HashMap<i64, usize>, HashMap<Arc<str>, usize>) = match (ints, texts) {
        (Some(keys), None) => {
            (keys.len(), keys.iter().enumerate().map(|(i, &key)| (key, i)).collect(), HashMap::new())
        }
        (None, Some(keys)) => (
            keys.len(),
            HashMap::new(),
            keys.iter().enumerate().map(|(i, key)| (Arc::clone(key), i)).collect(),
        ),
        _ => return Err(invalid("expected int64_vocabulary or string_vocabulary, found neither or both")),
    };
    Ok(Box::new(move |mut operands| {
        let map = take(&mut operands, 0)?.into_map()?;
        let found: Vec<Option<usize>> = match (map.int_keys(), map.text_keys()) {
            (Some(keys), _) => keys.iter().map(|key| ints.get(key).copied()).collect(),
            (_, Some(keys)) => keys.iter().map(|key| texts.get(key).copied()).collect(),
            _ => Vec::new(),
        };
        let mut places = vec![None; n];
        for (i, at) in found.into_iter().enumerate() {
            if let Some(at) = at {
                places[at] = Some(i);
            }
        }
        Ok(vec![placed(map.values(), &places)?])
    }))
}

/// Returns elements at these places, `[1, n]`; zero or an empty text for none.
fn placed(values: &Value, places: &[Option<usize>]) -> Result<Value> {
    let shape = [1, places.len()];
    let size = |dtype: DType| usize::from(dtype.bits) / 8;
    match values {
        Value::Strings(strings) => {
            let empty: Arc<str> = Arc::from("");
            let text = |place: &Option<usize>| Arc::clone(place.map_or(&empty, |i| &strings.elements()[i]));
            Ok(Strings::new(&shape, places.iter().map(text).collect())?.into())
        }
        Value::Tensor(tensor) if [F32, F64, I64].contains(&tensor.dtype()) => {
            let size = size(tensor.dtype());
            let mut bytes = vec![0u8; places.len() * size];
            for (to, place) in bytes.chunks_exact_mut(size).zip(places) {
                if let Some(i) = place {
                    to.copy_from_slice(&tensor.bytes()[i * size..(i + 1) * size]);
                }
            }
            Ok(Tensor::from_bytes(tensor.dtype(), &shape, &bytes)?.into())
        }
        other => Err(wrong(format!("expected numbers or strings in a map, found {}", other.ty()))),
    }
}
