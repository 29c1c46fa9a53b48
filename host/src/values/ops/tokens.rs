//! Tokenizer of com.microsoft, which scikit-learn's text pipelines use.

use super::{Site, Work, invalid, take_strings, wrong};
use crate::values::{Strings, ValueType};
use devbay_core::Result;
use devbay_core::cancel::look;
use devbay_core::tensor::n_elements;
use regex::{Regex, RegexBuilder};
use std::sync::Arc;

/// Marks of a text's begin and end.
const MARKS: [&str; 2] = ["\u{2}", "\u{3}"];
const PATTERN_SIZE_MAX: usize = 10 << 20;

/// The way of cutting a text.
enum Cut {
    /// Into characters.
    Characters,
    /// At matches of one expression after the other.
    Separators(Vec<Regex>),
    /// Into the matches of an expression.
    Expression(Regex),
}

fn compiled(pattern: &str) -> Result<Regex> {
    let regex = RegexBuilder::new(pattern).size_limit(PATTERN_SIZE_MAX).build();
    regex.map_err(|cause| invalid(format!("the pattern {pattern:?} cannot be used: {cause}")).because(cause))
}

fn cut(site: &Site<'_>) -> Result<Cut> {
    match (site.attrs.texts("separators")?.map(Vec::as_slice), site.attrs.text("tokenexp")?) {
        (Some([one]), None) if one.is_empty() => Ok(Cut::Characters),
        (Some(separators), None) if separators.iter().all(|one| !one.is_empty()) => {
            Ok(Cut::Separators(separators.iter().map(|one| compiled(one)).collect::<Result<_>>()?))
        }
        (None, Some(expression)) if !expression.is_empty() => Ok(Cut::Expression(compiled(expression)?)),
        _ => Err(invalid("expected separators or tokenexp that are not empty, found neither or both")),
    }
}

impl Cut {
    /// Returns the tokens of a text that have at least `min` characters.
    fn tokens<'a>(&self, text: &'a str, min: usize) -> Vec<&'a str> {
        let long = |token: &&str| !token.is_empty() && token.chars().count() >= min;
        match self {
            Self::Characters => text.split("").filter(|token| !token.is_empty()).collect(),
            Self::Separators(separators) => {
                let cut = |tokens: Vec<&'a str>, by: &Regex| {
                    tokens.into_iter().flat_map(|token| by.split(token)).collect()
                };
                separators.iter().fold(vec![text], cut).into_iter().filter(long).collect()
            }
            Self::Expression(regex) => {
                regex.find_iter(text).map(|found| found.as_str()).filter(long).collect()
            }
        }
    }
}

/// Strings with one more extent.
pub fn result(_: &Site<'_>) -> Result<Vec<ValueType>> {
    Ok(vec![ValueType::strings()])
}

/// Tokenizer: the tokens of each text, `[c]` or `[n, c]`, padded to the longest list.
pub fn tokenizer(site: &Site<'_>) -> Result<Work> {
    let cut = cut(site)?;
    let marks = site.attrs.int_or("mark", 0)? != 0;
    let min = site.attrs.int_or("mincharnum", 1)?;
    let min = usize::try_from(min)
        .map_err(|_| invalid(format!("expected mincharnum of 0 or more, found {min}")))?;
    let pad = site.attrs.text("pad_value")?.cloned().unwrap_or_else(|| Arc::from("#"));
    Ok(Box::new(move |mut operands| {
        let strings = take_strings(&mut operands, 0)?;
        if !matches!(strings.shape().len(), 1 | 2) {
            return Err(wrong(format!(
                "expected strings of extents [c] or [n, c], found {:?}",
                strings.shape()
            )));
        }
        let mut rows = Vec::with_capacity(strings.elements().len());
        for text in strings.elements() {
            look()?;
            rows.push(cut.tokens(text, min));
        }
        // Without any token there are no marks either, as in onnxruntime.
        if marks && rows.iter().any(|row| !row.is_empty()) {
            for row in &mut rows {
                row.insert(0, MARKS[0]);
                row.push(MARKS[1]);
            }
        }
        let width = rows.iter().map(Vec::len).max().unwrap_or(0);
        let shape = [strings.shape(), &[width]].concat();
        let n = n_elements(&shape).ok_or_else(|| wrong("the tokens are larger than memory"))?;
        let mut texts: Vec<Arc<str>> = devbay_plugin_api::reserve::with_capacity(n, "tokens")?;
        for row in &rows {
            texts.extend(row.iter().map(|token| Arc::from(*token)));
            texts.extend(std::iter::repeat_n(Arc::clone(&pad), width - row.len()));
        }
        Ok(vec![Strings::new(&shape, texts)?.into()])
    }))
}
