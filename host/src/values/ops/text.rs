//! StringNormalizer, StringConcat, StringSplit and RegexFullMatch.

use super::{Site, Work, invalid, take_strings, truths, wrong};
use crate::values::{Strings, Value, ValueType};
use devbay_core::cancel::look;
use devbay_core::tensor::{BOOL, I64, n_elements};
use devbay_core::{Error, ErrorKind, Result, Tensor};
use regex::RegexBuilder;
use std::collections::HashSet;
use std::sync::Arc;

/// Maximum size of a compiled pattern in bytes.
const PATTERN_SIZE_MAX: usize = 10 << 20;

/// Strings of an unknown shape.
pub fn same(_: &Site<'_>) -> Result<Vec<ValueType>> {
    Ok(vec![ValueType::strings()])
}

/// The change of a text's case.
fn case_change(site: &Site<'_>) -> Result<fn(&str) -> Arc<str>> {
    let action = site.attrs.text("case_change_action")?.map_or("NONE", |action| &**action);
    Ok(match action {
        "NONE" => |text| Arc::from(text),
        "LOWER" => |text| Arc::from(text.to_lowercase()),
        "UPPER" => |text| Arc::from(text.to_uppercase()),
        other => {
            return Err(invalid(format!(
                "expected NONE, LOWER or UPPER as case_change_action, found {other:?}"
            )));
        }
    })
}

/// StringNormalizer: removes stop words, then changes the case. Texts have the shape `[c]` or `[1, c]`. Without a text
/// left, the result is one empty text. The locale does not matter: Unicode's own case mapping is used.
pub fn normalizer(site: &Site<'_>) -> Result<Work> {
    let change = case_change(site)?;
    let exact = site.attrs.int_or("is_case_sensitive", 0)? != 0;
    let words = site.attrs.texts("stopwords")?.map(Vec::as_slice).unwrap_or_default();
    let folded = move |text: &str| if exact { text.to_owned() } else { text.to_lowercase() };
    let stop: HashSet<String> = words.iter().map(|word| folded(word)).collect();
    Ok(Box::new(move |mut operands| {
        let strings = take_strings(&mut operands, 0)?;
        let leading: &[usize] = match strings.shape() {
            [_] => &[],
            [1, _] => &[1],
            other => {
                return Err(wrong(format!("expected strings of extents [c] or [1, c], found {other:?}")));
            }
        };
        let kept = strings.elements().iter().filter(|text| stop.is_empty() || !stop.contains(&folded(text)));
        let mut texts: Vec<Arc<str>> = kept.map(|text| change(text)).collect();
        if texts.is_empty() {
            texts.push(Arc::from(""));
        }
        let shape = [leading, &[texts.len()]].concat();
        Ok(vec![Strings::new(&shape, texts)?.into()])
    }))
}

/// Strings of the operands' common shape.
pub fn concat_type(_: &Site<'_>) -> Result<Vec<ValueType>> {
    Ok(vec![ValueType::strings()])
}

/// StringConcat: joins texts elementwise; the shapes are broadcast as NumPy does.
pub fn concat(_: &Site<'_>) -> Result<Work> {
    Ok(Box::new(|mut operands| {
        let (a, b) = (take_strings(&mut operands, 0)?, take_strings(&mut operands, 1)?);
        let shape = broadcast(a.shape(), b.shape())?;
        let n = n_elements(&shape)
            .ok_or_else(|| wrong(format!("strings of extents {shape:?} are larger than memory")))?;
        let (from_a, from_b) = (positions(a.shape(), &shape), positions(b.shape(), &shape));
        let join = |i| Arc::from([&*a.elements()[from_a(i)], &*b.elements()[from_b(i)]].concat());
        Ok(vec![Strings::new(&shape, (0..n).map(join).collect())?.into()])
    }))
}

/// Returns the common shape of two operands.
fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
    let rank = a.len().max(b.len());
    let extent = |shape: &[usize], i: usize| (i + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
    let both = |i| match (extent(a, i), extent(b, i)) {
        (1, n) | (n, 1) => Ok(n),
        (n, m) if n == m => Ok(n),
        _ => Err(wrong(format!("extents {a:?} and {b:?} cannot be broadcast together"))),
    };
    (0..rank).map(both).collect()
}

/// Returns the function from positions in a broadcast result to those in an operand.
fn positions<'a>(shape: &'a [usize], result: &'a [usize]) -> impl Fn(usize) -> usize + 'a {
    move |mut at| {
        let (mut found, mut stride) = (0, 1);
        for i in (0..result.len()).rev() {
            let position = at % result[i];
            at /= result[i];
            if let Some(own) = (i + shape.len()).checked_sub(result.len()) {
                found += if shape[own] == 1 { 0 } else { position * stride };
                stride *= shape[own];
            }
        }
        found
    }
}

/// Strings with one more extent, and the numbers of parts.
pub fn split_types(site: &Site<'_>) -> Result<Vec<ValueType>> {
    let mut types = vec![ValueType::strings(), ValueType::number(I64)];
    types.truncate(site.n_outputs.max(1));
    Ok(types)
}

/// StringSplit: splits as Python's `str.split` does, and pads with empty texts.
pub fn split(site: &Site<'_>) -> Result<Work> {
    let delimiter = site.attrs.text("delimiter")?.cloned().filter(|delimiter| !delimiter.is_empty());
    let splits_max = match site.attrs.int("maxsplit")? {
        None => usize::MAX,
        Some(&n) => {
            usize::try_from(n).map_err(|_| invalid(format!("expected maxsplit of 0 or more, found {n}")))?
        }
    };
    let n_outputs = site.n_outputs;
    Ok(Box::new(move |mut operands| {
        let strings = take_strings(&mut operands, 0)?;
        let parts: Vec<Vec<&str>> =
            strings.elements().iter().map(|text| split_one(text, delimiter.as_deref(), splits_max)).collect();
        let width = parts.iter().map(Vec::len).max().unwrap_or(0);
        let shape = [strings.shape(), &[width]].concat();
        let n = n_elements(&shape)
            .ok_or_else(|| wrong(format!("strings of extents {shape:?} are larger than memory")))?;
        let mut texts: Vec<Arc<str>> = devbay_plugin_api::reserve::with_capacity(n, "parts of strings")?;
        let empty: Arc<str> = Arc::from("");
        for parts in &parts {
            texts.extend(parts.iter().map(|part| Arc::from(*part)));
            texts.extend(std::iter::repeat_n(Arc::clone(&empty), width - parts.len()));
        }
        let counts: Vec<i64> = parts.iter().map(|parts| parts.len() as i64).collect();
        let mut results: Vec<Value> = vec![
            Strings::new(&shape, texts)?.into(),
            Tensor::from_elements(strings.shape(), &counts)?.into(),
        ];
        results.truncate(n_outputs.max(1));
        Ok(results)
    }))
}

/// Splits one text at most `max` times: at a delimiter, or at runs of white space, where an empty text has no parts.
fn split_one<'a>(text: &'a str, delimiter: Option<&str>, max: usize) -> Vec<&'a str> {
    let Some(delimiter) = delimiter else {
        let mut parts = Vec::new();
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            let end = rest.find(char::is_whitespace).filter(|_| parts.len() < max).unwrap_or(rest.len());
            // The last part of all ends before the white space at the end, as the specification says; Python keeps it.
            parts.push(if parts.len() == max { rest.trim_end() } else { &rest[..end] });
            rest = rest[end..].trim_start();
        }
        return parts;
    };
    text.splitn(max.saturating_add(1), delimiter).collect()
}

/// Truth values of the operand's shape.
pub fn regex_type(_: &Site<'_>) -> Result<Vec<ValueType>> {
    Ok(vec![ValueType::number(BOOL)])
}

/// RegexFullMatch: whether a pattern matches a whole text. The matcher needs time linear in the text, as RE2's does.
pub fn regex(site: &Site<'_>) -> Result<Work> {
    let pattern = site
        .attrs
        .text("pattern")?
        .ok_or_else(|| invalid("expected the attribute \"pattern\", found none"))?;
    let regex = RegexBuilder::new(&format!(r"\A(?:{pattern})\z")).size_limit(PATTERN_SIZE_MAX).build();
    let regex = regex.map_err(|cause| {
        let kind = match cause {
            regex::Error::CompiledTooBig(_) => ErrorKind::UnsupportedModel,
            _ => ErrorKind::InvalidModel,
        };
        Error::new(kind, format!("the pattern {pattern:?} cannot be used: {cause}")).because(cause)
    })?;
    Ok(Box::new(move |mut operands| {
        let strings = take_strings(&mut operands, 0)?;
        let mut found = Vec::with_capacity(strings.elements().len());
        for text in strings.elements() {
            look()?;
            found.push(regex.is_match(text));
        }
        Ok(vec![truths(strings.shape(), found.into_iter())?])
    }))
}
