//! Buckets: inputs of varying length are padded to a few lengths, so that a few plans serve all of them.
//!
//! An extent that a model leaves open has a name there, its *symbol*, such as `seq`. Inputs are padded after their content
//! up to the next size of the symbol, and results are cropped to their unpadded extents. That is only correct for models in
//! which padded positions do not affect the others, as with an attention mask. A caller that asks for buckets asserts this,
//! and [`BucketOptions::check`] verifies it.
//!
//! The axes of results that have a symbol are found by inferring types for inputs of other lengths (`crops.rs`), not from
//! the model's names for them, which may be missing or wrong.

mod crops;
mod elements;

use crate::compare::{Tolerance, compare};
use crate::session::Port;
use crops::CropCache;
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::exec::cancel::Cancel;
use devbay_core::exec::host_io::{InputView, OutputView};
use devbay_core::exec::unit::Unit;
use devbay_core::tensor::{AlignedBytes, DType, Dim, F32, Tensor, TensorType, bytes_of, n_elements};
use elements::{copy_common, element_of};
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Options for padding inputs of varying length to a few sizes.
#[derive(Clone, Default, Debug)]
pub struct BucketOptions {
    /// Symbols of the model's inputs, and the sizes that each is padded to.
    pub sizes: Vec<(String, Sizes)>,
    /// Inputs, and the value that each is padded with; 0 for inputs not listed.
    pub padding: Vec<(String, f64)>,
    /// Repeats the first padded run of each size without padding and compares the results; a difference beyond this
    /// tolerance is [`ErrorKind::Mismatch`].
    pub check: Option<Tolerance>,
}

/// The sizes that an extent is padded to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sizes {
    /// These sizes, in ascending order. Lengths above the last are planned unpadded.
    Listed(Vec<usize>),
    /// All multiples of a number.
    Multiples(NonZeroUsize),
}

impl Sizes {
    /// Returns the smallest size that holds a length; None for length 0 and for lengths above all sizes.
    pub fn fit(&self, length: usize) -> Option<usize> {
        match self {
            _ if length == 0 => None,
            Self::Listed(sizes) => sizes.iter().copied().find(|&size| size >= length),
            Self::Multiples(of) => length.checked_next_multiple_of(of.get()),
        }
    }
}

impl FromStr for Sizes {
    type Err = Error;

    /// Reads `8,16,32`, or `*8` for all multiples of 8.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = || invalid(format!("sizes are ascending, as 8,16,32, or multiples, as *8; found {text}"));
        if let Some(of) = text.strip_prefix('*') {
            return of.parse().map(Self::Multiples).map_err(|_| wrong());
        }
        let sizes: Vec<usize> = text
            .split(',')
            .map(|size| size.trim().parse())
            .collect::<std::result::Result<_, _>>()
            .map_err(|_| wrong())?;
        let is_ascending = sizes.first().is_some_and(|&first| first > 0) && sizes.is_sorted_by(|a, b| a < b);
        is_ascending.then_some(Self::Listed(sizes)).ok_or_else(wrong)
    }
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}

/// A session's rules for padding and cropping.
pub(crate) struct Buckets {
    symbols: Vec<(String, Sizes)>,
    inputs: Vec<Input>,
    outputs: Vec<Arc<str>>,
    check: Option<Tolerance>,
    crops: CropCache,
}

/// Padding of one input.
struct Input {
    name: Arc<str>,
    dtype: DType,
    /// Axes that have a symbol, with its position.
    axes: Vec<(usize, usize)>,
    /// Bytes of one padding element.
    element: Vec<u8>,
}

/// Inputs that need padding: per symbol their length and padded size, and the padded shapes.
pub(crate) struct Fit {
    lengths: Vec<usize>,
    sizes: Vec<usize>,
    shapes: Vec<Vec<usize>>,
}

impl Buckets {
    /// Applies options to a model's inputs and outputs.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a symbol or an input that the model does not have, a duplicate, sizes that do not
    /// ascend, and a value that an input cannot hold.
    pub fn new(options: &BucketOptions, inputs: &[Port], outputs: &[Port]) -> Result<Self> {
        let symbols = options.sizes.clone();
        for (i, (name, sizes)) in symbols.iter().enumerate() {
            if symbols[..i].iter().any(|(known, _)| known == name) {
                return Err(invalid(format!("sizes of `{name}` are given twice")));
            }
            if let Sizes::Listed(sizes) = sizes
                && (sizes.first().is_none_or(|&first| first == 0) || !sizes.is_sorted_by(|a, b| a < b))
            {
                return Err(invalid(format!(
                    "sizes of `{name}` have to ascend from 1 or more, found {sizes:?}"
                )));
            }
        }
        let of_port = |port: &Port| {
            let ty = port.ty.as_ref();
            let dtype = ty.map_or(F32, |ty| ty.dtype);
            let dims = ty.and_then(|ty| ty.shape.as_deref()).unwrap_or_default();
            let axes = symbol_axes(dims, &symbols);
            let mut values =
                options.padding.iter().filter(|(name, _)| **name == *port.name).map(|(_, value)| *value);
            let value = values.next();
            if value.is_some() && (axes.is_empty() || values.next().is_some()) {
                let text =
                    format!("a value to pad `{}` with, which is not padded, or has one already", port.name);
                return Err(invalid(text));
            }
            let element = match axes.is_empty() {
                true => Vec::new(),
                false => element_of(dtype, value.unwrap_or(0.0)).ok_or_else(|| {
                    let ty = TensorType::unranked(dtype);
                    invalid(format!(
                        "input `{}` {ty} cannot be padded with {}",
                        port.name,
                        value.unwrap_or(0.0)
                    ))
                })?,
            };
            Ok(Input { name: port.name.clone(), dtype, axes, element })
        };
        let inputs: Vec<Input> = inputs.iter().map(of_port).collect::<Result<_>>()?;
        if let Some((name, _)) =
            options.padding.iter().find(|(name, _)| !inputs.iter().any(|input| *input.name == **name))
        {
            return Err(invalid(format!("a value to pad `{name}` with, which is no input of the model's")));
        }
        for (i, (name, _)) in symbols.iter().enumerate() {
            if !inputs.iter().any(|input| input.axes.iter().any(|&(_, symbol)| symbol == i)) {
                return Err(invalid(format!("no input of the model's has an extent `{name}`")));
            }
        }
        let outputs = outputs.iter().map(|port| port.name.clone()).collect();
        Ok(Self { symbols, inputs, outputs, check: options.check, crops: CropCache::default() })
    }

    /// Returns the padded sizes for inputs of these shapes, which the model takes; None if they need no padding.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] where inputs have different lengths along one symbol.
    pub fn fit<'a>(&self, shapes: impl Iterator<Item = &'a [usize]>) -> Result<Option<Fit>> {
        let mut shapes: Vec<Vec<usize>> = shapes.map(<[usize]>::to_vec).collect();
        let mut lengths: Vec<Option<(usize, &Input)>> = vec![None; self.symbols.len()];
        for (input, shape) in self.inputs.iter().zip(&shapes) {
            for &(axis, symbol) in &input.axes {
                let (length, first) = *lengths[symbol].get_or_insert((shape[axis], input));
                if length != shape[axis] {
                    let (name, _) = &self.symbols[symbol];
                    let text = format!(
                        "`{name}` is {length} in input `{}` and {} in input `{}`",
                        first.name, shape[axis], input.name
                    );
                    return Err(Error::new(ErrorKind::InvalidInput, text));
                }
            }
        }
        let lengths: Vec<usize> =
            lengths.into_iter().map(|length| length.map_or(0, |(length, _)| length)).collect();
        let fitting = self
            .symbols
            .iter()
            .zip(&lengths)
            .map(|((_, sizes), &length)| sizes.fit(length).unwrap_or(length));
        let sizes: Vec<usize> = fitting.collect();
        if sizes == lengths {
            return Ok(None);
        }
        self.resize(&mut shapes, &sizes);
        Ok(Some(Fit { lengths, sizes, shapes }))
    }

    /// Sets the extents of symbols in the shapes of inputs.
    fn resize(&self, shapes: &mut [Vec<usize>], extents: &[usize]) {
        for (input, shape) in self.inputs.iter().zip(shapes) {
            for &(axis, symbol) in &input.axes {
                shape[axis] = extents[symbol];
            }
        }
    }

    /// Returns the inputs padded after their content; None for an input without a symbol.
    fn pad(&self, fit: &Fit, inputs: &[InputView<'_>]) -> Result<Vec<Option<Tensor>>> {
        let pad = |((input, view), shape): ((&Input, &InputView<'_>), &Vec<usize>)| {
            if view.shape() == shape {
                return Ok(None);
            }
            let size = n_elements(shape).and_then(|n| bytes_of(input.dtype, n)).ok_or_else(|| {
                let ty = TensorType::new(input.dtype, shape);
                Error::new(
                    ErrorKind::OutOfMemory,
                    format!("input `{}` {ty} is larger than memory", input.name),
                )
            })?;
            let mut bytes = AlignedBytes::zeroed(size)?;
            if input.element.iter().any(|&byte| byte != 0) {
                bytes
                    .as_mut_slice()
                    .chunks_exact_mut(input.element.len())
                    .for_each(|to| to.copy_from_slice(&input.element));
            }
            copy_common(input.element.len(), (view.shape(), view.bytes()), (shape, bytes.as_mut_slice()));
            Tensor::from_storage(input.dtype, shape, Arc::new(bytes), 0, size).map(Some)
        };
        self.inputs.iter().zip(inputs).zip(&fit.shapes).map(pad).collect()
    }

    /// Runs on valid inputs, pads them where needed, and crops the results.
    ///
    /// # Errors
    /// As [`Unit::run_host`] and [`Buckets::fit`]; [`ErrorKind::UnsupportedModel`] if the padding in a result cannot be told
    /// apart; [`ErrorKind::Mismatch`] if checking is on and padding changes a result.
    pub fn run(&self, unit: &Unit, inputs: &[InputView<'_>], cancel: Option<&Cancel>) -> Result<Vec<Tensor>> {
        match self.fit(inputs.iter().map(InputView::shape))? {
            Some(fit) => self.run_padded(&fit, unit, inputs, cancel),
            None => unit.run_host(inputs, cancel),
        }
    }

    /// Runs as [`Buckets::run`], into the caller's memory. Results of padded inputs are copied there.
    ///
    /// # Errors
    /// As [`Buckets::run`]; [`ErrorKind::InvalidArgument`] for memory whose size is not the result's.
    pub fn run_into(
        &self,
        unit: &Unit,
        inputs: &[InputView<'_>],
        outputs: &mut [OutputView<'_>],
        cancel: Option<&Cancel>,
    ) -> Result<()> {
        let Some(fit) = self.fit(inputs.iter().map(InputView::shape))? else {
            return unit.run_into(inputs, outputs, cancel);
        };
        let results = self.run_padded(&fit, unit, inputs, cancel)?;
        if results.len() != outputs.len() {
            let text = format!("memory for {} results, expected {}", outputs.len(), results.len());
            return Err(invalid(text));
        }
        for (i, (result, output)) in results.iter().zip(outputs).enumerate() {
            let (found, expected) = (output.len(), result.bytes().len());
            if found != expected {
                return Err(invalid(format!("memory of {found} bytes for result {i}, expected {expected}")));
            }
            output.copy_from_slice(result.bytes());
        }
        Ok(())
    }

    fn run_padded(
        &self,
        fit: &Fit,
        unit: &Unit,
        inputs: &[InputView<'_>],
        cancel: Option<&Cancel>,
    ) -> Result<Vec<Tensor>> {
        let padded = self.pad(fit, inputs)?;
        let views =
            padded.iter().zip(inputs).map(|(padded, input)| padded.as_ref().map_or(*input, InputView::of));
        let views: Vec<InputView<'_>> = views.collect();
        let results = unit.run_host(&views, cancel)?;
        let crops = self.crops(fit, unit)?;
        let cropped = results.into_iter().zip(&crops.axes).map(|(result, axes)| fit.crop(result, axes));
        let cropped: Vec<Tensor> = cropped.collect::<Result<_>>()?;
        if let Some(tolerance) = self.check
            && !crops.is_checked.load(Ordering::Relaxed)
        {
            self.compare(fit, &cropped, &unit.run_host(inputs, cancel)?, tolerance)?;
            crops.is_checked.store(true, Ordering::Relaxed);
        }
        Ok(cropped)
    }

    /// Fails if padding changed a result.
    fn compare(&self, fit: &Fit, found: &[Tensor], expected: &[Tensor], tolerance: Tolerance) -> Result<()> {
        for ((name, found), expected) in self.outputs.iter().zip(found).zip(expected) {
            let verdict = compare(name, found, expected, tolerance);
            if verdict.matches {
                continue;
            }
            let padded =
                fit.padded(self).map(|(name, length, size)| format!("`{name}` from {length} to {size}"));
            let difference = verdict.reason.unwrap_or_else(|| {
                format!("it differs by {:.3e}, allowed is {:.3e}", verdict.max_difference, verdict.allowed)
            });
            let text = format!(
                "padding {} changes output `{name}`: {difference}; this model cannot be run in buckets, or not with these values",
                padded.collect::<Vec<_>>().join(", ")
            );
            return Err(Error::new(ErrorKind::Mismatch, text));
        }
        Ok(())
    }
}

impl Fit {
    /// Lists the padded symbols: name, length, size.
    fn padded<'a>(&'a self, buckets: &'a Buckets) -> impl Iterator<Item = (&'a str, usize, usize)> {
        let all = buckets.symbols.iter().zip(self.lengths.iter().zip(&self.sizes));
        all.map(|((name, _), (&length, &size))| (name.as_str(), length, size))
            .filter(|(_, length, size)| length != size)
    }

    /// Returns the unpadded lengths in words.
    pub fn wanted(&self, buckets: &Buckets) -> String {
        let wanted = self
            .padded(buckets)
            .map(|(name, length, size)| format!("`{name}` of {size} instead of {length}"));
        wanted.collect::<Vec<_>>().join(" and ")
    }

    /// Returns the types of the padded inputs, in the model's order.
    pub fn types<'a>(&'a self, buckets: &'a Buckets) -> impl Iterator<Item = (DType, &'a [usize])> + Clone {
        buckets.inputs.iter().zip(&self.shapes).map(|(input, shape)| (input.dtype, shape.as_slice()))
    }
}

/// Returns the axes whose extent is a symbol, with the symbol's position.
fn symbol_axes(dims: &[Dim], symbols: &[(String, Sizes)]) -> Vec<(usize, usize)> {
    let symbol = |(axis, dim): (usize, &Dim)| match dim {
        Dim::Unknown(name) => {
            symbols.iter().position(|(known, _)| **known == **name).map(|symbol| (axis, symbol))
        }
        Dim::Known(_) => None,
    };
    dims.iter().enumerate().filter_map(symbol).collect()
}

#[cfg(test)]
mod tests;
