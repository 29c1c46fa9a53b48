//! Finds the padding in results by inferring types for inputs of other lengths.

use super::elements::{copy_common, element_bytes};
use super::{Buckets, Fit};
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::exec::unit::Unit;
use devbay_core::plan::Plan;
use devbay_core::tensor::{AlignedBytes, Tensor, TensorType, n_elements};
use devbay_plugin_api::locks::lock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Crops for results of padded inputs, by the inputs' shapes.
#[derive(Default)]
pub(super) struct CropCache(Mutex<HashMap<Vec<Vec<usize>>, Arc<Crops>>>);

/// Crops for results of inputs of certain shapes.
pub(super) struct Crops {
    /// Per output, the symbol that each axis has, by position.
    pub axes: Vec<Vec<Option<usize>>>,
    /// Per symbol, the shortest length that these crops are known to hold for.
    shortest: Vec<usize>,
    /// True once a padded run was compared with an unpadded one.
    pub is_checked: AtomicBool,
}

/// Maximum number of shapes with cached crops: buckets have few shapes, but other extents are arbitrary.
const CROPS_MAX: usize = 256;

/// Extents of all outputs.
type Extents = Vec<Vec<usize>>;

impl CropCache {
    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<Vec<usize>>, Arc<Crops>>> {
        lock(&self.0)
    }

    fn keep(&self, shapes: &[Vec<usize>], crops: &Arc<Crops>) {
        let mut kept = self.lock();
        if kept.len() >= CROPS_MAX {
            kept.clear();
        }
        kept.insert(shapes.to_vec(), Arc::clone(crops));
    }
}

impl Buckets {
    /// Returns the crops of results.
    ///
    /// An axis has a symbol if its extent equals the symbol's at the padded size, at the requested length and at one less
    /// than the size; it has none if the extent is the same at all three. This needs only type inference, once for each
    /// bucket and for each new shortest length.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedModel`] for an output whose extents depend on data, or on a symbol in any other way.
    pub(super) fn crops(&self, fit: &Fit, unit: &Unit) -> Result<Arc<Crops>> {
        let known = self.crops.lock().get(&fit.shapes).cloned();
        let is_enough = |crops: &&Arc<Crops>| {
            crops.shortest.iter().zip(&fit.lengths).all(|(known, length)| known <= length)
        };
        if let Some(crops) = known.as_ref().filter(is_enough) {
            return Ok(Arc::clone(crops));
        }
        let padded = self.extents(&result_types(&*unit.plan_for(fit.types(self))?))?;
        let mut shortest = fit.lengths.clone();
        if let Some(known) = &known {
            shortest
                .iter_mut()
                .zip(&known.shortest)
                .for_each(|(length, &known)| *length = known.min(*length));
        }
        let mut axes: Vec<Vec<Option<usize>>> =
            padded.iter().map(|extents| vec![None; extents.len()]).collect();
        for (symbol, (&size, &length)) in fit.sizes.iter().zip(&shortest).enumerate() {
            // A symbol at its full size adds no padding to crop.
            let mut lengths = if length < size { vec![length, size - 1] } else { Vec::new() };
            lengths.dedup();
            let shorter =
                lengths.into_iter().map(|length| Ok((length, self.extents_at(fit, unit, symbol, length)?)));
            let shorter: Vec<(usize, Extents)> = shorter.collect::<Result<_>>()?;
            self.note(symbol, (size, &padded), &shorter, &mut axes)?;
        }
        let is_checked = AtomicBool::new(known.is_some_and(|known| known.is_checked.load(Ordering::Relaxed)));
        let crops = Arc::new(Crops { axes, shortest, is_checked });
        self.crops.keep(&fit.shapes, &crops);
        Ok(crops)
    }

    /// Returns the extents of all outputs for padded inputs, with one symbol at a given length.
    fn extents_at(&self, fit: &Fit, unit: &Unit, symbol: usize, length: usize) -> Result<Extents> {
        let (mut extents, mut shapes) = (fit.sizes.clone(), fit.shapes.clone());
        extents[symbol] = length;
        self.resize(&mut shapes, &extents);
        let types = self.inputs.iter().zip(&shapes).map(|(input, shape)| TensorType::new(input.dtype, shape));
        self.extents(&unit.result_types(&types.collect::<Vec<_>>())?)
    }

    fn extents(&self, types: &[Option<TensorType>]) -> Result<Extents> {
        let of_output = |(name, ty): (&Arc<str>, &Option<TensorType>)| {
            ty.as_ref().and_then(TensorType::known_shape).ok_or_else(|| {
                let ty = ty.as_ref().map(ToString::to_string).unwrap_or_default();
                let text = format!("output `{name}` {ty} has extents that depend on data, so the part that is padding is unknown");
                Error::new(ErrorKind::UnsupportedModel, text)
            })
        };
        self.outputs.iter().zip(types).map(of_output).collect()
    }

    /// Notes which axes of outputs have a symbol, by their extents at its size and at shorter lengths.
    fn note(
        &self,
        symbol: usize,
        (size, padded): (usize, &Extents),
        shorter: &[(usize, Extents)],
        axes: &mut [Vec<Option<usize>>],
    ) -> Result<()> {
        for (output, long) in padded.iter().enumerate() {
            for (length, extents) in shorter {
                let short = &extents[output];
                let is_odd = short.len() != long.len()
                    || (0..long.len()).any(|axis| {
                        let is_same =
                            shorter.iter().all(|(_, extents)| extents[output].get(axis) == Some(&long[axis]));
                        let is_symbol = axes[output][axis].is_none_or(|known| known == symbol);
                        !(is_same || is_symbol && (long[axis], short[axis]) == (size, *length))
                    });
                if is_odd {
                    let text = format!(
                        "output `{}` is {long:?} where `{name}` is {size} and {short:?} where it is {length}, so the \
                         part that is padding is unknown",
                        self.outputs[output],
                        name = self.symbols[symbol].0
                    );
                    return Err(Error::new(ErrorKind::UnsupportedModel, text));
                }
                for axis in (0..long.len()).filter(|&axis| long[axis] != short[axis]) {
                    axes[output][axis] = Some(symbol);
                }
            }
        }
        Ok(())
    }
}

impl Fit {
    /// Removes the padding from a result.
    pub(super) fn crop(&self, result: Tensor, axes: &[Option<usize>]) -> Result<Tensor> {
        let extents = result.shape().iter().zip(axes);
        let shape: Vec<usize> =
            extents.map(|(&extent, symbol)| symbol.map_or(extent, |symbol| self.lengths[symbol])).collect();
        if shape == result.shape() {
            return Ok(result);
        }
        let element = element_bytes(result.dtype()).ok_or_else(|| {
            let text = format!("a result {} of packed elements cannot be cropped", result.tensor_type());
            Error::new(ErrorKind::UnsupportedModel, text)
        })?;
        let size = n_elements(&shape).unwrap_or_default() * element;
        let mut bytes = AlignedBytes::zeroed(size)?;
        copy_common(element, (result.shape(), result.bytes()), (&shape, bytes.as_mut_slice()));
        Tensor::from_storage(result.dtype(), &shape, Arc::new(bytes), 0, size)
    }
}

/// Returns the types of a plan's results.
fn result_types(plan: &Plan) -> Vec<Option<TensorType>> {
    plan.program.main.outputs.iter().map(|&id| plan.program.value(id).ty.clone()).collect()
}
