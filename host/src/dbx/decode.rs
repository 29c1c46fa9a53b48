//! Decodes the file form into programs. No field of it is trusted.

use super::damaged;
use super::form::{
    AppliedForm, AttrForm, Content, DTypeForm, DimForm, NodeForm, ProgramForm, RegionForm, TensorForm,
    TypeForm,
};
use devbay_core::error::Result;
use devbay_core::passes::{Applied, Switches};
use devbay_core::program::verify::{self, REGION_DEPTH_MAX};
use devbay_core::program::{AttrValue, Node, Op, Program, Region, Value, ValueId};
use devbay_core::tensor::{self, Bytes, DType, Dim, Tensor, TensorType};
use std::sync::Arc;

/// Bytes of the weights.
pub struct Weights {
    /// The file.
    pub file: Arc<dyn Bytes>,
    /// Range of each weight in the file, checked to be within it.
    pub places: Vec<std::ops::Range<usize>>,
}

impl Weights {
    /// Returns a weight as a tensor.
    ///
    /// # Errors
    /// For a missing weight, or one whose size does not fit the type.
    pub fn tensor(&self, number: u32, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        let place = self.places.get(number as usize);
        let place = place.ok_or_else(|| damaged(format!("weight {number} is not there")))?;
        Tensor::from_storage(dtype, shape, Arc::clone(&self.file), place.start, place.len())
    }

    /// Returns the number of bytes of a weight.
    pub fn length(&self, number: u32) -> usize {
        self.places.get(number as usize).map_or(0, ExactSizeIterator::len)
    }
}

/// Returns the tensors that programs refer to.
pub fn tensors(forms: &[TensorForm<'_>], weights: &Weights) -> Result<Vec<Tensor>> {
    let tensor = |form: &TensorForm<'_>| {
        let (dtype, shape) = (dtype(form.dtype)?, extents(&form.shape)?);
        match form.content {
            Content::Here(bytes) => {
                // Copies at most as many bytes as the file has.
                let needed = tensor::n_elements(&shape).and_then(|n| tensor::bytes_of(dtype, n));
                if needed != Some(bytes.len()) {
                    let ty = TensorType::new(dtype, &shape);
                    return Err(damaged(format!("a constant {ty} has {} bytes", bytes.len())));
                }
                Tensor::from_bytes(dtype, &shape, bytes)
            }
            Content::Weight(number) => weights.tensor(number, dtype, &shape),
        }
    };
    forms.iter().map(tensor).collect()
}

/// Decodes and verifies a program.
pub fn program(form: &ProgramForm<'_>, tensors: &[Tensor]) -> Result<Program> {
    let values = form.values.iter().map(|value| {
        Ok(Value {
            name: Arc::from(value.name),
            ty: value.ty.as_ref().map(type_of).transpose()?,
            constant: value.constant.map(|number| tensor_of(tensors, number)).transpose()?,
        })
    });
    let values = values.collect::<Result<_>>()?;
    // Each region with the depth of regions nested in it; None once it is inside another.
    let mut regions: Vec<Option<(Region, usize)>> = Vec::with_capacity(form.regions.len());
    for form in &form.regions {
        let region = region(form, &mut regions, tensors)?;
        regions.push(Some(region));
    }
    let main = regions.pop().flatten().ok_or_else(|| damaged("a program without a region"))?.0;
    if regions.iter().any(Option::is_some) {
        return Err(damaged("a region that no node has"));
    }
    let program = Program { name: form.name.to_owned(), values, main };
    verify::verify(&program)?;
    Ok(program)
}

fn region(
    form: &RegionForm<'_>,
    regions: &mut [Option<(Region, usize)>],
    tensors: &[Tensor],
) -> Result<(Region, usize)> {
    let ids = |numbers: &[u32]| numbers.iter().copied().map(ValueId).collect();
    let mut depth = 0;
    let mut nodes = Vec::with_capacity(form.nodes.len());
    for form in &form.nodes {
        let mut nested = Vec::with_capacity(form.regions.len());
        for &(name, number) in &form.regions {
            let found = regions.get_mut(number as usize).and_then(Option::take);
            let (region, of_region) = found.ok_or_else(|| damaged("a region that is not there"))?;
            depth = depth.max(of_region + 1);
            // Dropping a region recurses.
            if depth > REGION_DEPTH_MAX {
                return Err(damaged(format!("regions nest deeper than {REGION_DEPTH_MAX}")));
            }
            nested.push((Arc::from(name), region));
        }
        nodes.push(node(form, nested, tensors)?);
    }
    Ok((Region { inputs: ids(&form.inputs), nodes, outputs: ids(&form.outputs) }, depth))
}

fn node(form: &NodeForm<'_>, regions: Vec<(Arc<str>, Region)>, tensors: &[Tensor]) -> Result<Node> {
    let ids = |numbers: &[Option<u32>]| numbers.iter().map(|number| number.map(ValueId)).collect();
    let (domain, name, version) = form.op;
    let attrs = form.attrs.iter().map(|(name, value)| Ok((Arc::from(*name), attribute(value, tensors)?)));
    Ok(Node {
        name: Arc::from(form.name),
        op: Op { domain: Arc::from(domain), name: Arc::from(name), version },
        inputs: ids(&form.inputs),
        outputs: ids(&form.outputs),
        attrs: attrs.collect::<Result<_>>()?,
        regions,
    })
}

fn attribute(form: &AttrForm<'_>, tensors: &[Tensor]) -> Result<AttrValue> {
    Ok(match form {
        AttrForm::Int(value) => AttrValue::Int(*value),
        AttrForm::Float(value) => AttrValue::Float(*value),
        AttrForm::String(value) => AttrValue::String((*value).to_owned()),
        AttrForm::Ints(values) => AttrValue::Ints(values.clone()),
        AttrForm::Floats(values) => AttrValue::Floats(values.clone()),
        AttrForm::Strings(values) => {
            AttrValue::Strings(values.iter().map(|value| (*value).to_owned()).collect())
        }
        AttrForm::Tensor(number) => AttrValue::Tensor(tensor_of(tensors, *number)?),
    })
}

/// Returns the effects of passes, without passes that no longer exist.
pub fn applied(forms: &[AppliedForm<'_>]) -> Vec<Applied> {
    let applied = |&(name, changes, before, after): &AppliedForm<'_>| {
        let name = Switches::names().find(|known| *known == name)?;
        Some(Applied { name, changes: changes as usize, before: before as usize, after: after as usize })
    };
    forms.iter().filter_map(applied).collect()
}

pub fn tensor_of(tensors: &[Tensor], number: u32) -> Result<Tensor> {
    let found = tensors.get(number as usize).cloned();
    found.ok_or_else(|| damaged(format!("tensor {number} is not there")))
}

fn dtype((code, bits, lanes): DTypeForm) -> Result<DType> {
    let dtype = DType { code, bits, lanes };
    match tensor::dtype_from_name(&tensor::dtype_name(dtype)) == Some(dtype) {
        true => Ok(dtype),
        false => Err(damaged(format!("{} is no element type", tensor::dtype_name(dtype)))),
    }
}

fn type_of(form: &TypeForm<'_>) -> Result<TensorType> {
    let dim = |dim: &DimForm<'_>| {
        Ok(match *dim {
            DimForm::Known(extent) => Dim::Known(self::extent(extent)?),
            DimForm::Unknown(name) => Dim::Unknown(Arc::from(name)),
        })
    };
    let shape = form.shape.as_ref().map(|shape| shape.iter().map(dim).collect::<Result<_>>());
    Ok(TensorType { dtype: dtype(form.dtype)?, shape: shape.transpose()? })
}

fn extents(forms: &[u64]) -> Result<Vec<usize>> {
    forms.iter().map(|&form| extent(form)).collect()
}

fn extent(form: u64) -> Result<usize> {
    // As in ONNX, where extents are i64.
    let extent = usize::try_from(form).ok().filter(|_| i64::try_from(form).is_ok());
    extent.ok_or_else(|| damaged(format!("an extent of {form}")))
}
