//! Strings as numbers: their positions in a sorted list without repetitions.
//!
//! Moving strings is moving their codes, and strings are equal or in order as their codes are. So devices run Gather,
//! Concat, Where, Equal, Unique and the like on i64, and no second implementation of these ops is needed. Import puts
//! Encode before such a node and Decode behind each of its results that is strings again.

use super::{Site, Work, take, take_strings, wrong};
use crate::values::{Strings, Value, ValueType};
use devbay_core::tensor::I64;
use devbay_core::{Result, Tensor};
use std::sync::Arc;

/// An op that runs on codes.
pub struct Coded {
    /// Its name.
    pub name: &'static str,
    /// Domain; empty for ONNX's own.
    pub domain: &'static str,
    /// Which operands may be strings.
    pub takes: fn(usize) -> bool,
    /// Which results are strings then.
    pub gives: fn(usize) -> bool,
}

const fn coded(name: &'static str, takes: fn(usize) -> bool, gives: fn(usize) -> bool) -> Coded {
    Coded { name, domain: "", takes, gives }
}

const ALL: fn(usize) -> bool = |_| true;
const NONE: fn(usize) -> bool = |_| false;
const FIRST: fn(usize) -> bool = |i| i == 0;

/// The ops that run on codes.
pub const CODED: &[Coded] = &[
    coded("Equal", ALL, NONE),
    coded("Shape", ALL, NONE),
    coded("Size", ALL, NONE),
    coded("Concat", ALL, ALL),
    coded("Where", |i| i > 0, FIRST),
    coded("Gather", FIRST, FIRST),
    coded("GatherElements", FIRST, FIRST),
    coded("GatherND", FIRST, FIRST),
    coded("ScatterElements", |i| i != 1, FIRST),
    coded("ScatterND", |i| i != 1, FIRST),
    coded("Reshape", FIRST, FIRST),
    coded("Squeeze", FIRST, FIRST),
    coded("Unsqueeze", FIRST, FIRST),
    coded("Flatten", FIRST, FIRST),
    coded("Transpose", FIRST, FIRST),
    coded("Slice", FIRST, FIRST),
    coded("Expand", FIRST, FIRST),
    coded("Tile", FIRST, FIRST),
    coded("Split", FIRST, ALL),
    coded("Compress", FIRST, FIRST),
    coded("Unique", FIRST, FIRST),
    coded("ReverseSequence", FIRST, FIRST),
    coded("SpaceToDepth", FIRST, FIRST),
    coded("DepthToSpace", FIRST, FIRST),
    Coded { name: "ArrayFeatureExtractor", domain: super::ML, takes: FIRST, gives: FIRST },
];

/// Finds the entry of an op.
pub fn find(domain: &str, name: &str) -> Option<&'static Coded> {
    CODED.iter().find(|coded| coded.domain == domain && coded.name == name)
}

/// The list of texts, and codes for each operand.
pub fn encode_types(site: &Site<'_>) -> Result<Vec<ValueType>> {
    let mut types = vec![ValueType::strings()];
    types.resize(1 + site.inputs.len(), ValueType::number(I64));
    Ok(types)
}

/// Encode: a sorted list of all operands' texts, and each operand's positions in it.
pub fn encode(_: &Site<'_>) -> Result<Work> {
    Ok(Box::new(|mut operands| {
        let strings: Vec<Strings> =
            (0..operands.len()).map(|i| take_strings(&mut operands, i)).collect::<Result<_>>()?;
        let mut table: Vec<Arc<str>> =
            strings.iter().flat_map(|strings| strings.elements().iter().cloned()).collect();
        table.sort_unstable();
        table.dedup();
        let code = |text: &Arc<str>| table.binary_search(text).map_or(-1, |at| at as i64);
        let mut results: Vec<Value> = Vec::with_capacity(1 + strings.len());
        for strings in &strings {
            let codes: Vec<i64> = strings.elements().iter().map(code).collect();
            results.push(Tensor::from_elements(strings.shape(), &codes)?.into());
        }
        results.insert(0, Strings::new(&[table.len()], table)?.into());
        Ok(results)
    }))
}

/// Strings of the codes' shape.
pub fn decode_type(_: &Site<'_>) -> Result<Vec<ValueType>> {
    Ok(vec![ValueType::strings()])
}

/// Decode: the texts of codes.
pub fn decode(_: &Site<'_>) -> Result<Work> {
    Ok(Box::new(|mut operands| {
        let codes = take(&mut operands, 0)?.into_tensor()?;
        let table = take_strings(&mut operands, 1)?;
        let elements = codes.elements::<i64>().unwrap_or_default().iter();
        let texts = elements.map(|&code| {
            let found = usize::try_from(code).ok().and_then(|at| table.elements().get(at)).cloned();
            found.ok_or_else(|| {
                wrong(format!("expected a code of one of {} strings, found {code}", table.elements().len()))
            })
        });
        Ok(vec![Strings::new(codes.shape(), texts.collect::<Result<_>>()?)?.into()])
    }))
}
