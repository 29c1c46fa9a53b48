//! Programs that a compiler takes whole, nothing being left to other devices.

use crate::device::Graph;
use crate::error::{Error, ErrorKind, Result};
use crate::passes::Moment;
use crate::plan::{Env, is_typed};
use crate::program::{Node, Program};
use crate::tensor::TensorType;

/// A program for inputs of given types, one for each, with constants folded on the devices of an environment.
///
/// # Errors
/// Errors of passes and specialising.
pub fn specialised(program: &Program, types: &[TensorType], env: &Env) -> Result<Program> {
    let mut program = program.clone();
    env.run_passes(&mut program, Moment::Model)?;
    Ok(env.specialised(&program, types)?.0)
}

/// Returns all of a program that was specialised.
///
/// # Errors
/// [`ErrorKind::UnsupportedOp`], with the node, for control flow and for types that depend on data;
/// [`ErrorKind::InvalidModel`] for a result that no node makes.
pub fn graph(program: &Program) -> Result<Graph<'_>> {
    for node in &program.main.nodes {
        let text = match node {
            node if !node.regions.is_empty() => "control flow, which compilers are not shown",
            node if !is_typed(program, node) => "types that depend on data",
            _ => continue,
        };
        return Err(Error::new(ErrorKind::UnsupportedOp, text).at_node(node.label()));
    }
    let nodes: Vec<&Node> = program.main.nodes.iter().collect();
    let makes = |id| nodes.iter().any(|node| node.outputs.contains(&Some(id)));
    if let Some(&id) = program.main.outputs.iter().find(|id| !makes(**id)) {
        let text = format!(
            "result `{}` is an input or constant: there is nothing to compile",
            program.value(id).name
        );
        return Err(Error::new(ErrorKind::InvalidModel, text));
    }
    Ok(Graph::new(program, nodes, &program.main.outputs))
}
