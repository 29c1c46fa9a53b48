//! Encodes programs into the file form, with the tensors and weights that they share.

use super::form::{
    AppliedForm, AttrForm, Content, DTypeForm, DimForm, Head, NodeForm, PackedForm, ProgramForm, RegionForm,
    SMALL_BYTES_MAX, TensorForm, TypeForm, ValueForm, WEIGHT_ALIGN, Weight,
};
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::passes::Applied;
use devbay_core::plan::ahead::PackedConstant;
use devbay_core::program::{AttrValue, Program, Region, ValueId};
use devbay_core::tensor::{DType, Dim, Tensor, TensorType};
use sha2::{Digest, Sha256};
use std::collections::HashMap;

/// Address and length of a tensor's bytes.
type Identity = (usize, usize);

/// Deduplicated tensors and weights.
#[derive(Default)]
pub struct Pool<'a> {
    tensors: Vec<TensorForm<'a>>,
    tensors_known: HashMap<(Identity, DTypeForm, &'a [usize]), u32>,
    weights: Vec<&'a [u8]>,
    weights_known: HashMap<[u8; 32], u32>,
    /// Weights by the identity of their bytes, so that nothing is hashed twice.
    bytes_known: HashMap<Identity, u32>,
    places: Vec<Weight>,
    end: usize,
}

impl<'a> Pool<'a> {
    fn tensor(&mut self, tensor: &'a Tensor) -> Result<u32> {
        let key = (tensor.identity(), dtype(tensor.dtype()), tensor.shape());
        if let Some(&known) = self.tensors_known.get(&key) {
            return Ok(known);
        }
        let content = match tensor.bytes() {
            small if small.len() <= SMALL_BYTES_MAX => Content::Here(small),
            _ => Content::Weight(self.weight(tensor, WEIGHT_ALIGN)?),
        };
        let number = number(self.tensors.len())?;
        let shape = tensor.shape().iter().map(|&extent| extent as u64).collect();
        self.tensors.push(TensorForm { dtype: dtype(tensor.dtype()), shape, content });
        self.tensors_known.insert(key, number);
        Ok(number)
    }

    /// Adds the bytes of a tensor as a weight, or reuses a weight with the same bytes.
    fn weight(&mut self, tensor: &'a Tensor, align: usize) -> Result<u32> {
        if let Some(&known) = self.bytes_known.get(&tensor.identity()) {
            return Ok(known);
        }
        let bytes = tensor.bytes();
        let sha256: [u8; 32] = Sha256::digest(bytes).into();
        let known = self.weights_known.get(&sha256).copied();
        let known = known.filter(|&known| self.places[known as usize].offset.is_multiple_of(align as u64));
        let at = match known {
            Some(known) => known,
            None => {
                let at = number(self.weights.len())?;
                let offset = self.end.next_multiple_of(align);
                self.places.push(Weight { offset: offset as u64, length: bytes.len() as u64, sha256 });
                self.weights.push(bytes);
                self.end = offset + bytes.len();
                self.weights_known.insert(sha256, at);
                at
            }
        };
        self.bytes_known.insert(tensor.identity(), at);
        Ok(at)
    }

    /// Encodes a program that refers to this pool's tensors.
    pub fn program(&mut self, program: &'a Program) -> Result<ProgramForm<'a>> {
        let mut values = Vec::with_capacity(program.values.len());
        for value in &program.values {
            let constant = value.constant.as_ref().map(|tensor| self.tensor(tensor)).transpose()?;
            values.push(ValueForm { name: &value.name, ty: value.ty.as_ref().map(type_form), constant });
        }
        let mut regions = Vec::new();
        self.region(&program.main, &mut regions)?;
        Ok(ProgramForm { name: &program.name, values, regions })
    }

    fn region(&mut self, region: &'a Region, regions: &mut Vec<RegionForm<'a>>) -> Result<u32> {
        let mut nodes = Vec::with_capacity(region.nodes.len());
        for node in &region.nodes {
            let mut attrs = Vec::with_capacity(node.attrs.len());
            for (name, value) in &node.attrs {
                attrs.push((&**name, self.attribute(value)?));
            }
            let mut nested = Vec::with_capacity(node.regions.len());
            for (name, region) in &node.regions {
                nested.push((&**name, self.region(region, regions)?));
            }
            nodes.push(NodeForm {
                name: &node.name,
                op: (&node.op.domain, &node.op.name, node.op.version),
                inputs: node.inputs.iter().map(|id| id.map(|id| id.0)).collect(),
                outputs: node.outputs.iter().map(|id| id.map(|id| id.0)).collect(),
                attrs,
                regions: nested,
            });
        }
        let numbers = |ids: &[ValueId]| ids.iter().map(|id| id.0).collect();
        regions.push(RegionForm {
            inputs: numbers(&region.inputs),
            nodes,
            outputs: numbers(&region.outputs),
        });
        number(regions.len() - 1)
    }

    fn attribute(&mut self, value: &'a AttrValue) -> Result<AttrForm<'a>> {
        Ok(match value {
            AttrValue::Int(value) => AttrForm::Int(*value),
            AttrValue::Float(value) => AttrForm::Float(*value),
            AttrValue::String(value) => AttrForm::String(value),
            AttrValue::Ints(values) => AttrForm::Ints(values.clone()),
            AttrValue::Floats(values) => AttrForm::Floats(values.clone()),
            AttrValue::Strings(values) => AttrForm::Strings(values.iter().map(String::as_str).collect()),
            AttrValue::Tensor(tensor) => AttrForm::Tensor(self.tensor(tensor)?),
        })
    }

    /// Returns packed constants whose source is in a program, or has the bytes of one that is: what was folded for a plan is
    /// folded again for the file. A pass for one device may have made others. They come from a map keyed by address and are
    /// sorted by source, so that a model always gives the same file.
    pub fn packed(&mut self, all: &'a [PackedConstant]) -> Result<Vec<PackedForm<'a>>> {
        let known = |packed: &'a PackedConstant| {
            let source = &packed.source;
            let key = (source.identity(), dtype(source.dtype()), source.shape());
            let found = self.tensors_known.get(&key).copied().or_else(|| self.find(source));
            found.map(|source| (source, packed))
        };
        let mut known: Vec<(u32, &PackedConstant)> = all.iter().filter_map(known).collect();
        let order =
            |&(source, packed): &(u32, &'a PackedConstant)| (source, &packed.plugin, packed.layout_id);
        known.sort_by_key(order);
        known.dedup_by_key(|it| order(it));
        let mut forms = Vec::with_capacity(known.len());
        for (source, PackedConstant { plugin, version, layout_id, align, content, .. }) in known {
            let weight = self.weight(content, (*align).max(WEIGHT_ALIGN))?;
            forms.push(PackedForm { plugin, version, source, layout_id: *layout_id, weight });
        }
        Ok(forms)
    }

    /// The number of a tensor with the same elements.
    fn find(&self, tensor: &Tensor) -> Option<u32> {
        let is_same = |form: &TensorForm<'_>| {
            form.dtype == dtype(tensor.dtype())
                && form.shape.iter().copied().eq(tensor.shape().iter().map(|&extent| extent as u64))
                && tensor.bytes()
                    == match form.content {
                        Content::Here(bytes) => bytes,
                        Content::Weight(at) => self.weights[at as usize],
                    }
        };
        self.tensors.iter().position(is_same).and_then(|at| u32::try_from(at).ok())
    }

    /// Returns the head of a file with these tensors and weights, and the weights' bytes.
    pub fn into_head(self, rest: Head<'a>) -> (Head<'a>, Vec<&'a [u8]>) {
        (Head { weights: self.places, tensors: self.tensors, ..rest }, self.weights)
    }
}

pub fn applied(all: &[Applied]) -> Vec<AppliedForm<'static>> {
    let form = |it: &Applied| (it.name, it.changes as u64, it.before as u64, it.after as u64);
    all.iter().map(form).collect()
}

fn dtype(dtype: DType) -> DTypeForm {
    (dtype.code, dtype.bits, dtype.lanes)
}

fn type_form(ty: &TensorType) -> TypeForm<'_> {
    let dim = |dim| match dim {
        &Dim::Known(extent) => DimForm::Known(extent as u64),
        Dim::Unknown(name) => DimForm::Unknown(name),
    };
    let shape = ty.shape.as_ref().map(|shape| shape.iter().map(dim).collect());
    TypeForm { dtype: dtype(ty.dtype), shape }
}

fn number(n: usize) -> Result<u32> {
    u32::try_from(n).map_err(|_| Error::new(ErrorKind::UnsupportedModel, "the model has 2^32 parts or more"))
}
