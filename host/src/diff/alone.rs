//! A single node as a model, with its inputs, for bug reports.

use super::OnDevice;
use super::planned::Planned;
use super::source::{Source, tag};
use crate::model::Model;
use devbay_core::Tensor;
use devbay_core::error::Result;
use devbay_core::plan::extract::extract;
use devbay_core::program::{Program, Region, ValueId, text, verify};
use std::collections::HashSet;
use std::sync::Arc;

/// A single node as a model, with its inputs.
#[derive(Clone, Debug)]
pub struct Alone {
    /// The node, and the nodes between it and the preceding borders.
    pub program: Program,
    /// Its inputs by name.
    pub inputs: Vec<(String, Tensor)>,
}

impl Alone {
    /// Extracts the nodes of the model that make a value, with the values that they start from; None if one of these is
    /// missing.
    pub(super) fn of(
        source: &Source,
        target: ValueId,
        (nodes, begins): (&[usize], &[ValueId]),
        stops: &HashSet<ValueId>,
        value: impl Fn(ValueId) -> Option<Tensor>,
    ) -> Option<Self> {
        let mut nodes: Vec<_> = nodes.iter().map(|&at| source.nodes[at].clone()).collect();
        for node in &mut nodes {
            let mut through = |node: &mut devbay_core::program::Node| {
                for id in node.inputs.iter_mut().flatten() {
                    *id = source.through(*id, stops);
                }
            };
            through(node);
            node.regions.iter_mut().for_each(|(_, region)| region.visit_mut(&mut through));
        }
        let tensors: Vec<Tensor> = begins.iter().map(|&id| value(id)).collect::<Option<_>>()?;
        let region = Region { inputs: begins.to_vec(), nodes, outputs: vec![target] };
        let (mut program, rest) = extract(&source.program, &region);
        if !rest.is_empty() {
            return None;
        }
        for (&id, tensor) in program.main.inputs.clone().iter().zip(&tensors) {
            program.value_mut(id).ty = Some(tensor.tensor_type());
        }
        // Inputs and the result come first, so that they keep their names.
        let mut ids: Vec<ValueId> =
            program.main.inputs.iter().chain(&program.main.outputs).copied().collect();
        ids.extend((0..program.values.len() as u32).map(ValueId));
        let (mut named, mut used) = (HashSet::new(), HashSet::new());
        for id in ids {
            if named.insert(id) {
                let name = tag(&program.value(id).name).map(|of| source.name(of)).unwrap_or_default();
                // The name also names an array of an archive.
                let plain = !name.is_empty() && !name.starts_with(['%', '/', '.']) && !name.contains("..");
                let name = if plain && used.insert(name.clone()) { name } else { format!("v{}", id.0) };
                used.insert(name.clone());
                program.value_mut(id).name = Arc::from(name);
            }
        }
        verify::verify(&program).ok()?;
        let names = program.main.inputs.iter().map(|&id| program.value(id).name.to_string());
        Some(Self { inputs: names.zip(tensors).collect(), program })
    }

    /// Returns the program in the text form, which `devbay run` takes.
    pub fn text(&self) -> String {
        text::print(&self.program)
    }

    /// Returns the name of its result.
    pub fn output(&self) -> String {
        self.program.value(self.program.main.outputs[0]).name.to_string()
    }

    /// Returns its result on a side, with all passes run.
    ///
    /// # Errors
    /// Errors of planning and running.
    pub fn run(&self, on: &OnDevice) -> Result<Tensor> {
        let unit = Model::from_program(self.program.clone()).placed(&on.placement, on.plans.clone())?;
        let tensors: Vec<Tensor> = self.inputs.iter().map(|(_, tensor)| tensor.clone()).collect();
        let types: Vec<_> = tensors.iter().map(Tensor::tensor_type).collect();
        Ok(Planned::of_unit(&unit, &types)?.run_whole(&tensors, None)?.remove(0))
    }
}
